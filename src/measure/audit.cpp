#include "measure/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace penstock::measure {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestDocument = uintmax_t{16} << 20;

std::string within(const std::string& folder, const std::string& path) {
  return (fs::path(folder) / path).lexically_normal().string();
}

// Markdown files, folders with everything below them; sorted, each once.
std::vector<std::string> documents_of(const AuditRequest& request, const Claims& claims) {
  std::vector<std::string> named = request.documents;
  if (named.empty()) {
    for (const std::string& path : claims.documents) named.push_back(within(claims.folder, path));
  }
  std::set<std::string> out;
  for (const std::string& path : named) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      if (!fs::exists(path, error)) {
        fail(ErrorKind::Io, "{}: no such document (named in {})", path,
             request.documents.empty() ? request.claims : "the command line");
      }
      out.insert(fs::path(path).lexically_normal().string());
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && entry.path().extension() == ".md") {
        out.insert(entry.path().lexically_normal().string());
      }
    }
  }
  if (request.documents.empty()) {
    for (const std::string& path : claims.exclude) {
      const std::string left_out = within(claims.folder, path);
      std::erase_if(out, [&](const std::string& document) {
        return document == left_out || document.starts_with(left_out + "/");
      });
    }
  }
  return {out.begin(), out.end()};
}

struct Document {
  std::string path;
  std::vector<DocumentFigure> figures;
  std::vector<char> covered;  // 0 not, 1 by a claim, 2 by a setting
  QuoteFinder quotes;
};

Document read_document(const std::string& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kLargestDocument) {
    fail(ErrorKind::Format, "{}: a document of more than {} MiB", path, kLargestDocument >> 20);
  }
  const std::string text = read_text_file(path);
  Document out{path, markdown_figures(text), {}, QuoteFinder(text)};
  out.covered.resize(out.figures.size());
  return out;
}

class DocumentCover {
 public:
  explicit DocumentCover(std::vector<Document> documents) : documents_(std::move(documents)) {}

  // Marks what the quote covers; whether it is anywhere. `values`: only these numbers.
  bool quote(const std::string& text, const std::vector<Written>* values) {
    bool found = false;
    for (Document& document : documents_) {
      for (const auto& [begin, end] : document.quotes.find(text)) {
        found = true;
        for (size_t i = 0; i < document.figures.size(); ++i) {
          const DocumentFigure& figure = document.figures[i];
          // A quote may leave out the unit, in a table as well as in prose.
          const size_t number_end = figure.begin + figure.number.text.size();
          if (figure.begin < begin || number_end > end) continue;
          if (values != nullptr && !has(*values, figure.number)) continue;
          if (document.covered[i] != 1) document.covered[i] = values != nullptr ? 1 : 2;
        }
      }
    }
    return found;
  }

  void report(Audit* audit) const {
    audit->documents = documents_.size();
    for (const Document& document : documents_) {
      audit->figures += document.figures.size();
      for (size_t i = 0; i < document.figures.size(); ++i) {
        if (document.covered[i] == 0)
          audit->unclaimed.push_back({document.path, document.figures[i]});
        audit->covered_by_settings += document.covered[i] == 2;
      }
    }
  }

 private:
  static bool has(const std::vector<Written>& values, const Written& number) {
    return std::any_of(values.begin(), values.end(), [&](const Written& value) {
      return value.value == number.value ||
             // "-59" of a document that says "59 % less", "+1.60" of one that says "1.60".
             (value.value == -number.value);
    });
  }

  std::vector<Document> documents_;
};

// A quote that stands nowhere is a claim about a document that was changed.
void stale(const std::string& path, size_t line, const std::string& what, const std::string& quote,
           Audit* audit) {
  audit->others.push_back({fmt::format("{}:{}", path, line),
                           {Verdict::NoSource, "scan",
                            fmt::format("{} is in none of the documents: \"{}\"", what, quote)}});
}

}  // namespace

bool Audit::ok() const noexcept {
  return unclaimed.empty() && others.empty() &&
         std::all_of(claims.begin(), claims.end(), [](const auto& claim) { return claim.ok(); });
}

Audit audit(const AuditRequest& request) {
  const Claims claims = read_claims(request.claims);
  Archive archive;
  for (const std::string& path : claims.records) archive.add(within(claims.folder, path));
  for (const std::string& path : request.records) archive.add(path);
  Audit out;
  out.claims_path = request.claims;
  out.records = archive.entries().size();
  for (const Claim& claim : claims.claims) {
    out.claims.push_back(audit_claim(claim, claims, archive));
  }
  out.others = campaign_findings(archive);

  std::vector<Document> documents;
  for (const std::string& path : documents_of(request, claims)) {
    documents.push_back(read_document(path));
  }
  // Documents given by hand are some of those that the claims are about.
  const bool whole = request.documents.empty() && !documents.empty();
  DocumentCover cover(std::move(documents));
  for (const Claim& claim : claims.claims) {
    if (!cover.quote(claim.text, &claim.value) && whole) {
      stale(claims.path, claim.line, "the text of claim " + claim.id, claim.text, &out);
    }
  }
  for (const Setting& setting : claims.settings) {
    for (const std::string& quote : setting.quotes) {
      if (!cover.quote(quote, nullptr) && whole) {
        stale(claims.path, setting.line, "a setting", quote, &out);
      }
    }
  }
  cover.report(&out);
  return out;
}

}  // namespace penstock::measure
