// A claims file, a document and records (parts.h) through `penstock audit`: any of them may be
// refused with an Error, or found wanting, and nothing else.
#include <fstream>

#include "base/log.h"
#include "measure/audit.h"
#include "measure/claims.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

namespace {

// Whatever it names lies in the folder: a fuzzer is not to read the machine's files.
bool stays_inside(const Claims& claims) {
  for (const std::string& name : claims.records) {
    if (name != "records") return false;
  }
  return claims.exclude.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  log::set_level(log::Level::Quiet);
  folder.clear();
  const std::vector<std::string> parts = fuzz::parts_of(data, size);
  if (parts.size() < 2) return 0;
  AuditRequest request;
  request.claims = folder.write("claims.toml", parts[0]);
  request.documents = {folder.write("page.md", parts[1])};
  fuzz::tolerate([&] {
    if (!stays_inside(read_claims(request.claims))) return;
    fuzz::write_archive(parts, 2, folder, "records");
    const Audit found = audit(request);
    audit_table(found);
    audit_markdown(found);
    audit_json(found).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
    for (const ClaimResult& claim : found.claims) {
      fuzz::require(claim.ok() == (claim.verdict() == Verdict::Ok));
    }
  });
  return 0;
}
