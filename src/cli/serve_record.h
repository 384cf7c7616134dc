// What `serve --record` writes down of a request: a run record of its own, whose counters and times
// are the differences that the request made.
#pragma once

#include <string>

#include "server/job_watch.h"

namespace penstock::cli {

server::WatchJob record_requests(const std::string& folder);

}  // namespace penstock::cli
