#include "experts/iobench.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/error.h"
#include "expert_files.h"
#include "experts/record.h"
#include "faulty_backend.h"

namespace penstock::experts {
namespace {

using test::Directory;
using test::write_experts;

IoBenchOptions quick() {
  IoBenchOptions options;
  options.depths = {1, 4};
  options.warm_up_s = 0;
  options.seconds = 0.05;
  return options;
}

TEST(IoBench, CountsWhatItReads) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  for (const IoMode mode : {IoMode::Auto, IoMode::Pread, IoMode::Buffered}) {
    const auto files = open_expert_files(geometry, mode);
    IoBenchOptions options = quick();
    options.io = mode;
    options.busy_threads = 1;
    int called = 0;
    const IoBenchReport report =
        iobench(geometry, *files, options, [&](const IoBenchRow&) { ++called; });
    EXPECT_EQ(called, 2);
    ASSERT_EQ(report.rows.size(), 2u);
    EXPECT_EQ(report.span_bytes, 32 * geometry.layers[0].expert_bytes());
    // Every expert is the same size here but for what alignment adds.
    const RecordLayout layout = record_layout(geometry.layers[0], files->alignment());
    for (const IoBenchRow& row : report.rows) {
      EXPECT_GT(row.experts, 0u);
      EXPECT_GE(row.bytes, row.experts * geometry.layers[0].expert_bytes());
      EXPECT_LE(row.bytes, row.experts * layout.slot_bytes);
      EXPECT_GE(row.seconds, 0.05);
      EXPECT_GT(row.p50_ns, 0u);
      EXPECT_GE(row.p99_ns, row.p50_ns);
      EXPECT_GE(row.cpu_s, 0);
      EXPECT_GE(row.busy_bytes_per_s, 0);  // the machine may be too busy itself
    }
  }
}

TEST(IoBench, AFailedReadEndsItByName) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  const auto files = open_expert_files(geometry, IoMode::Pread);
  IoBenchOptions options = quick();
  options.io = IoMode::Pread;
  options.decorate = test::with_faults({.errors = {{5, EIO}}});
  try {
    iobench(geometry, *files, options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find(geometry.shards[0]), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("layer 1 at byte"), std::string::npos) << error.what();
  }
}

TEST(IoBench, AModelWithoutExpertsIsRefused) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  const auto files = open_expert_files(geometry, IoMode::Pread);
  EXPECT_THROW(iobench(Geometry{}, *files, quick()), Error);
}

}  // namespace
}  // namespace penstock::experts
