// What other programs print about themselves, read by named parsers (rule R17 of `penstock audit`:
// run again on the archived output, a parser must give the values that the record holds).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace penstock::measure {

// Parsers: "llama.cpp" (the timings that its programs print at the end, on standard error),
// "llama-bench" (its JSON), "llama-server" (the answer of /completion), "event-stream" (the lines
// that any OpenAI-like server streams, each with the time at which it was there), "stream" (the
// arrival times alone, as older records have them), "bigmoeonedge" (the last lines of bmoe-cli).
// Times in ms. Values by their names, as in the peer record's `values`; nothing for what was not
// printed. Throws Error(Format) for a parser that is not known and for output that it cannot read
// at all.
nlohmann::json parse_peer_output(const std::string& parser, const std::string& out,
                                 const std::string& err);
const std::vector<std::string>& peer_parsers();

// Where a peer record's values are not what its parser gives for the archived output, which lies in
// `folder`/files; nothing if it names no parser or its output was not archived.
std::vector<std::string> reparse_problems(const nlohmann::json& record, const std::string& folder);

}  // namespace penstock::measure
