// penstock report: tables and plots from records.
#include "measure/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/bench_folder.h"
#include "cli/commands.h"
#include "measure/archive.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::vector<std::string> inputs;
  std::string out, docs, plots, title = "Benchmarks";
};

void write_text(const fs::path& path, const std::string& text) {
  AtomicFile file(path.string());
  file.write(text.data(), text.size());
  file.commit();
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) fail(ErrorKind::Io, "{}: {}", folder.string(), error.message());
}

void write_report(const measure::Report& report, const std::string& folder) {
  make_folder(folder);
  const fs::path out(folder);
  write_text(out / "report.html", measure::report_html(report));
  write_text(out / "report.md", measure::report_markdown(report));
  write_text(out / "report.csv", measure::report_csv(report));
  write_text(out / "report.json", measure::report_json(report).dump(1) + "\n");
}

void write_page(const measure::Report& report, const Flags& flags) {
  const fs::path page = fs::absolute(flags.docs).lexically_normal();
  const fs::path plots = flags.plots.empty()
                             ? page.parent_path() / (page.stem().string() + "-plots")
                             : fs::absolute(flags.plots).lexically_normal();
  std::string relative = plots.lexically_relative(page.parent_path()).generic_string();
  if (relative == ".") relative.clear();
  while (relative.ends_with('/')) relative.pop_back();
  const measure::ReportPage made = measure::report_page(report, flags.title, relative);
  make_folder(page.parent_path());
  if (!made.plots.empty()) make_folder(plots);
  // The page comes last: it never refers to plots that are not there.
  for (const measure::ReportFile& plot : made.plots) write_text(plots / plot.name, plot.text);
  write_text(page, made.markdown);
}

// Without names: what `penstock bench` left here, as a page here.
Flags completed(Flags flags) {
  if (!flags.inputs.empty()) return flags;
  if (!fs::is_directory(kBenchFolder)) {
    fail(ErrorKind::Usage,
         "name records or folders of them: there is no {} here, which `penstock bench quick` makes",
         kBenchFolder);
  }
  flags.inputs = {kBenchFolder};
  if (flags.out.empty() && flags.docs.empty()) flags.out = "report";
  return flags;
}

int run_report(const Flags& flags) {
  if (!flags.plots.empty() && flags.docs.empty()) {
    fail(ErrorKind::Usage, "--plots says where the plots of --docs FILE go: name that file too");
  }
  measure::Archive archive;
  for (const std::string& input : flags.inputs) archive.add(input);
  const measure::Report report = measure::make_report(archive);
  if (!flags.out.empty()) write_report(report, flags.out);
  if (!flags.docs.empty()) write_page(report, flags);
  fmt::print("{}", measure::report_table(report));
  if (!flags.out.empty())
    fmt::print("\n  {} is the page\n", (fs::path(flags.out) / "report.html").string());
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "report", "Makes tables and plots from records, campaigns and measurements of quality.");
  command->footer(
      "Examples:\n"
      "  penstock report\n"
      "  penstock report bench/results/arena-sweep -o report\n"
      "  penstock report runs/*.json ~/.local/share/penstock/quality -o report\n"
      "  penstock report bench/results/* --docs docs/benchmarks.md --plots docs/plots\n"
      "\n"
      "docs/report.md says what is in a report, and what it refuses.");
  command->add_option("input", flags->inputs, "files, or folders whose *.json are read")
      ->default_str(kBenchFolder);
  command->add_option("-o,--out", flags->out,
                      "folder for report.html, report.md, report.csv and report.json; report where "
                      "no input is named");
  command->add_option("--docs", flags->docs, "a Markdown page for a repository")
      ->group("A page for a repository");
  command->add_option("--plots", flags->plots, "where its plots go")
      ->default_str("beside it, NAME-plots")
      ->group("A page for a repository");
  command->add_option("--title", flags->title, "its title")
      ->capture_default_str()
      ->group("A page for a repository");
  command->callback(
      [flags, action] { *action = [flags] { return run_report(completed(*flags)); }; });
}

}  // namespace penstock::cli
