// Making a pack: what fails, what is killed, what goes on.
#include "experts/pack_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "base/error.h"
#include "experts/faulty_backend.h"
#include "experts/pack.h"
#include "experts/pack_file.h"
#include "experts/pack_fixture.h"
#include "experts/pack_identity.h"

namespace penstock::experts::test {
namespace {

namespace fs = std::filesystem;

// The n-th call on (from 1) fails with this errno.
template <typename Result, typename... Args>
std::function<Result(Args...)> failing(std::function<Result(Args...)> call, int n, int error) {
  return [call, n, error, count = std::make_shared<int>(0)](Args... args) -> Result {
    if (++*count >= n) {
      errno = error;
      return -1;
    }
    return call(args...);
  };
}

TEST(PackWriter, TheSameModelGivesTheSameBytes) {
  const Directory directory;
  PackBench bench(directory);
  const PackResult first = bench.pack();
  EXPECT_FALSE(first.existed);
  EXPECT_EQ(first.n_records, 25u);
  EXPECT_EQ(first.resumed_bytes, 0u);
  EXPECT_FALSE(fs::exists(bench.partial()));
  const std::string bytes = file_bytes(bench.out);
  fs::remove(bench.out);
  for (const IoMode mode : {IoMode::Uring, IoMode::Pread, IoMode::Buffered}) {
    for (const int depth : {1, 8, 64}) {
      PackRequest request = bench.request();
      request.stream.io = mode;
      request.stream.depth = depth;
      write_pack(request);
      EXPECT_EQ(file_bytes(bench.out), bytes) << io_mode_name(mode) << depth;
      fs::remove(bench.out);
    }
  }
}

TEST(PackWriter, ShardsAreReadInPlace) {
  const Directory directory;
  PackBench one(directory);
  PackBench many(directory, {.max_shard_bytes = 100'000, .name = "sharded"});
  ASSERT_GT(many.model.shards().size(), 3u);
  one.pack();
  many.pack();
  const Pack a = Pack::open(one.out);
  const Pack b = Pack::open(many.out);
  EXPECT_EQ(std::vector(a.layers().begin(), a.layers().end()),
            std::vector(b.layers().begin(), b.layers().end()));
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(a.read_sums()[l].sums, b.read_sums()[l].sums);
  EXPECT_NE(a.header().source_header_id, b.header().source_header_id);
  EXPECT_EQ(a.header().dense_id, b.header().dense_id);
}

TEST(PackWriter, WhatIsThereAlreadyIsNotMadeAgain) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const auto made = fs::last_write_time(bench.out);
  EXPECT_TRUE(bench.pack().existed);
  EXPECT_EQ(fs::last_write_time(bench.out), made);

  PackBench other(directory, {.seed = 2, .name = "other"});
  PackRequest request = other.request();
  request.out = bench.out;
  expect_words(message_of(ErrorKind::Usage, [&] { write_pack(request); }), {bench.out, "--force"});
  request.replace = true;
  EXPECT_FALSE(write_pack(request).existed);
  EXPECT_EQ(pack_mismatch(Pack::open(bench.out).header(), identify(other.model)), "");

  request.out = bench.path;  // the other model's file
  request.replace = false;
  EXPECT_THROW(write_pack(request), Error);
  request.out = other.path;
  request.replace = true;
  expect_words(message_of(ErrorKind::Usage, [&] { write_pack(request); }), {"the model itself"});
  EXPECT_EQ(gguf::Model::open(other.path).model_id(), other.model.model_id());
}

TEST(PackWriter, LateShortAndInterruptedReadsChangeNothing) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const std::string bytes = file_bytes(bench.out);
  for (const IoMode mode : {IoMode::Uring, IoMode::Pread, IoMode::Buffered}) {
    fs::remove(bench.out);
    PackRequest request = bench.request();
    request.stream.io = mode;
    request.stream.decorate = with_faults(
        {.seed = 5, .hold = 0.5, .reorder = true, .short_reads = 0.4, .transient = 0.3});
    write_pack(request);
    EXPECT_EQ(file_bytes(bench.out), bytes) << io_mode_name(mode);
  }
}

TEST(PackWriter, ShortAndInterruptedWritesChangeNothing) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const std::string bytes = file_bytes(bench.out);
  fs::remove(bench.out);
  PackRequest request = bench.request();
  std::mt19937 random(4);
  request.calls.pwrite = [&random](int fd, const void* data, size_t n, off_t at) -> ssize_t {
    if (random() % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    return ::pwrite(fd, data, std::max<size_t>(1, random() % (n + 1)), at);
  };
  int syncs = 0;
  request.calls.fsync = [&syncs](int fd) {
    errno = EINTR;
    return ++syncs == 1 ? -1 : ::fsync(fd);
  };
  write_pack(request);
  EXPECT_EQ(file_bytes(bench.out), bytes);
}

TEST(PackWriter, AReadErrorNamesTheExpertAndTheNextRunGoesOn) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.stream.depth = 1;
  request.stream.decorate = with_faults({.errors = {{3 * 5 + 2, EIO}}});  // expert 5's up
  const std::string text = message_of(ErrorKind::Io, [&] { write_pack(request); });
  expect_words(text, {"expert 5 of layer 0", bench.path, "errno 5"});
  EXPECT_FALSE(fs::exists(bench.out));
  const PackResult result = bench.pack();
  const Pack pack = Pack::open(bench.out);
  EXPECT_EQ(result.resumed_bytes, 5 * pack.layers()[0].stride);
  EXPECT_EQ(verify_pack(pack, {}, nullptr).n_bad, 0u);
}

TEST(PackWriter, AFullDiskSaysSoAndTheNextRunGoesOn) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const std::string bytes = file_bytes(bench.out);
  fs::remove(bench.out);
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    PackRequest request = bench.request();
    request.calls.pwrite =
        failing<ssize_t>(request.calls.pwrite, 4 + 9, error);  // the tenth record
    const std::string text = message_of(ErrorKind::Io, [&] { write_pack(request); });
    expect_words(text, {bench.partial(), "errno " + std::to_string(error), "goes on"});
    EXPECT_FALSE(fs::exists(bench.out));
    // The last checkpoint could not be written either: what was written is checked all the same.
    EXPECT_TRUE(fs::exists(bench.partial()));
    write_pack(bench.request());
    EXPECT_EQ(file_bytes(bench.out), bytes);
    fs::remove(bench.out);
  }
}

TEST(PackWriter, RoomIsAskedForBeforehand) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.calls.fstatvfs = [](int fd, struct statvfs* out) {
    const int result = ::fstatvfs(fd, out);
    out->f_bavail = 10;
    out->f_frsize = 4096;
    return result;
  };
  const std::string text = message_of(ErrorKind::Io, [&] { write_pack(request); });
  expect_words(text, {"more are needed", "40.0 KiB are free", "make ", "-o"});
  EXPECT_FALSE(fs::exists(bench.partial()));

  request = bench.request();
  request.calls.fallocate = failing<int>(request.calls.fallocate, 1, ENOSPC);
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"more are needed"});
  EXPECT_FALSE(fs::exists(bench.partial()));

  // A file system without fallocate is no obstacle.
  request.calls.fallocate = failing<int>(WriteCalls().fallocate, 1, EOPNOTSUPP);
  write_pack(request);
  EXPECT_EQ(verify_pack(Pack::open(bench.out), {}, nullptr).n_bad, 0u);
}

TEST(PackWriter, ADiskThatFailsAtTheEndLeavesNoPack) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.calls.fsync = failing<int>(request.calls.fsync, 1, EIO);
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"disk", "errno 5"});
  request = bench.request();
  request.calls.rename = failing<int>(request.calls.rename, 1, EACCES);
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"rename", "errno 13"});
  EXPECT_FALSE(fs::exists(bench.out));
  const PackResult result = bench.pack();  // all of it was there
  EXPECT_EQ(result.packed_bytes, 0u);
  EXPECT_GT(result.resumed_bytes, 0u);
  EXPECT_EQ(verify_pack(Pack::open(bench.out), {}, nullptr).n_bad, 0u);
}

// Runs the request in a process that dies by SIGKILL before its n-th write.
bool killed_at(PackRequest request, int n) {
  const pid_t child = fork();
  if (child == 0) {
    auto count = std::make_shared<int>(0);
    const auto die = [n, count] {
      if (++*count == n) ::kill(::getpid(), SIGKILL);
    };
    request.calls.pwrite = [die](int fd, const void* data, size_t bytes, off_t at) {
      die();
      return ::pwrite(fd, data, bytes, at);
    };
    request.calls.fsync = [die](int fd) {
      die();
      return ::fsync(fd);
    };
    request.calls.rename = [die](const char* from, const char* to) {
      die();
      return ::rename(from, to);
    };
    try {
      write_pack(request);
    } catch (...) {
      _exit(2);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return false;
}

TEST(PackWriter, KilledAtEveryStepItGoesOnToTheSameBytes) {
  const Directory directory;
  PackBench bench(directory);
  const uint64_t result_bytes = bench.pack().packed_bytes;
  const std::string bytes = file_bytes(bench.out);
  PackRequest request = bench.request();
  request.stream.io = IoMode::Uring;  // no threads across the fork
  request.checkpoint_bytes = 4 * Pack::open(bench.out).layers()[0].stride;
  fs::remove(bench.out);
  int n = 1;
  uint64_t resumed = 0;
  for (; killed_at(request, n); ++n) {
    if (!fs::exists(bench.out)) {  // else it died after the rename
      const PackResult result = write_pack(request);
      EXPECT_GE(result.resumed_bytes, resumed) << n;
      resumed = result.resumed_bytes;
    }
    EXPECT_EQ(file_bytes(bench.out), bytes) << n;
    EXPECT_FALSE(fs::exists(bench.partial()));
    fs::remove(bench.out);
  }
  // 25 records, some checkpoints, table, metadata, checksums, header, fsyncs, rename; the later it
  // died, the more of it was there.
  EXPECT_GT(n, 40);
  EXPECT_GT(resumed, result_bytes / 2);
}

TEST(PackWriter, InterruptedAgainAndAgainItComesToAnEnd) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const std::string bytes = file_bytes(bench.out);
  fs::remove(bench.out);
  PackRequest request = bench.request();
  request.stream.io = IoMode::Uring;
  int deaths = 0;
  std::atomic<bool> cancel{false};
  request.cancel = &cancel;
  for (;; ++deaths) {
    ASSERT_LT(deaths, 40);
    cancel = false;
    uint64_t before = 0;
    request.progress = [&](std::string_view phase, uint64_t done, uint64_t) {
      if (phase == "packing" && before == 0) before = done;
      if (phase == "packing" && done > before) cancel = true;  // two records a run
    };
    try {
      write_pack(request);
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Cancelled) << error.what();
    }
  }
  EXPECT_GT(deaths, 8);
  EXPECT_EQ(file_bytes(bench.out), bytes);
}

// Leaves a partial file with 10 records.
void interrupt_after_ten(PackBench& bench) {
  std::atomic<bool> cancel{false};
  PackRequest request = bench.request();
  request.cancel = &cancel;
  int records = 0;
  request.progress = [&](std::string_view, uint64_t, uint64_t) { cancel = ++records == 10; };
  expect_words(message_of(ErrorKind::Cancelled, [&] { write_pack(request); }), {"10 of 25"});
  ASSERT_TRUE(fs::exists(bench.partial()));
}

TEST(PackWriter, WhatWasDamagedSinceIsMadeAgain) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const std::string bytes = file_bytes(bench.out);
  const Pack pack = Pack::open(bench.out);
  fs::remove(bench.out);
  const uint64_t base = pack.layers()[0].base_off;
  const uint64_t stride = pack.layers()[0].stride;
  struct Damage {
    uint64_t at, kept;
  };
  for (const Damage damage : {Damage{base + 3 * stride + 5, 3}, {100, 0}, {4000, 0}}) {
    interrupt_after_ten(bench);
    std::string partial = file_bytes(bench.partial());
    partial[damage.at] = static_cast<char>(partial[damage.at] ^ 1);
    write_bytes(bench.partial(), partial);
    EXPECT_EQ(bench.pack().resumed_bytes, damage.kept * stride);
    EXPECT_EQ(file_bytes(bench.out), bytes);
    fs::remove(bench.out);
  }
  interrupt_after_ten(bench);
  fs::resize_file(bench.partial(), 9000);
  EXPECT_EQ(bench.pack().resumed_bytes, 0u);
  EXPECT_EQ(file_bytes(bench.out), bytes);
  fs::remove(bench.out);
  write_bytes(bench.partial(), "something else");
  bench.pack();
  EXPECT_EQ(file_bytes(bench.out), bytes);
}

TEST(PackWriter, AnotherOrAChangedSourceStartsAgain) {
  const Directory directory;
  PackBench bench(directory);
  interrupt_after_ten(bench);
  PackBench other(directory, {.seed = 2, .name = "other"});
  PackRequest request = other.request();
  request.out = bench.out;
  EXPECT_EQ(write_pack(request).resumed_bytes, 0u);
  EXPECT_EQ(pack_mismatch(Pack::open(bench.out).header(), identify(other.model)), "");
  fs::remove(bench.out);

  interrupt_after_ten(bench);
  fs::last_write_time(bench.path, fs::last_write_time(bench.path) + std::chrono::seconds(1));
  EXPECT_EQ(bench.pack().resumed_bytes, 0u);
}

TEST(PackWriter, ASourceThatChangesMeanwhileIsNoticed) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  int records = 0;
  request.progress = [&](std::string_view, uint64_t, uint64_t) {
    if (++records == 20) fs::last_write_time(bench.path, fs::file_time_type::clock::now());
  };
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }),
               {bench.path, "start again"});
  EXPECT_FALSE(fs::exists(bench.out));
  EXPECT_FALSE(fs::exists(bench.partial()));

  // Cut short: the experts at its end are no longer there.
  request.progress = [&](std::string_view, uint64_t, uint64_t) {
    fs::resize_file(bench.path, bench.geometry.layers[2].down.offset + 10);
  };
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"layer 2", "ends"});
}

TEST(PackWriter, OneProcessAtATime) {
  const Directory directory;
  PackBench bench(directory);
  const PartialPack held(bench.out, WriteCalls());
  expect_words(message_of(ErrorKind::Io, [&] { bench.pack(); }),
               {bench.partial(), "another process"});
}

TEST(PackWriter, FoldersThatAreNotThereAreNamed) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.out = directory.file("no/such/folder/x.xpk");
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"no/such/folder"});
  request.out = directory.file("");
  expect_words(message_of(ErrorKind::Usage, [&] { write_pack(request); }), {"folder"});
  request = bench.request();
  request.align = 1000;
  expect_words(message_of(ErrorKind::Usage, [&] { write_pack(request); }), {"1000"});
}

TEST(DenseOnly, ItIsTheModelWithoutItsExperts) {
  const Directory directory;
  for (const uint64_t shard : {uint64_t{0}, uint64_t{100'000}}) {
    PackBench bench(directory, {.max_shard_bytes = shard, .name = shard == 0 ? "one" : "many"});
    PackRequest request = bench.request();
    request.dense_out = directory.file("dense" + std::to_string(shard) + ".gguf");
    const PackResult result = write_pack(request);
    EXPECT_EQ(result.dense_bytes, fs::file_size(request.dense_out));
    EXPECT_THROW(gguf::Model::open(request.dense_out), Error);  // not without being asked
    const gguf::Model dense = gguf::Model::open(request.dense_out, {.allow_missing_experts = true});
    ASSERT_EQ(dense.tensors().size(), bench.model.tensors().size());
    uint64_t kept = 0;
    for (const gguf::Tensor& t : bench.model.tensors()) {
      const gguf::Tensor& d = dense.require(t.name);
      EXPECT_EQ(d.type, t.type);
      EXPECT_EQ(d.ne, t.ne);
      EXPECT_EQ(d.present, t.name.find("_exps") == std::string::npos) << t.name;
      if (!d.present) continue;
      kept += t.bytes;
      EXPECT_EQ(std::memcmp(dense.data(d), bench.model.data(t), t.bytes), 0) << t.name;
    }
    EXPECT_LT(fs::file_size(request.dense_out), kept + 8192);
    EXPECT_EQ(dense.metadata().get_string("general.name"), "a model");
    EXPECT_EQ(dense.metadata().get_string_array("tokenizer.ggml.tokens").size(), 3u);

    const ModelIdentity identity = identify(dense);
    EXPECT_FALSE(identity.whole);
    EXPECT_EQ(pack_mismatch(Pack::open(bench.out).header(), identity), "");
    PackBench other(directory, {.seed = 9, .name = "other" + std::to_string(shard)});
    other.pack();
    expect_words(pack_mismatch(Pack::open(other.out).header(), identity), {"another model"});

    EXPECT_TRUE(write_pack(request).dense_existed);
    write_bytes(request.dense_out, "mine");
    expect_words(message_of(ErrorKind::Usage, [&] { write_pack(request); }), {"--force"});
    // What a killed run leaves behind goes away; 2^22 is more than any process id.
    const std::string stale = request.dense_out + ".4194305.partial";
    write_bytes(stale, "half");
    request.replace = true;
    write_pack(request);
    EXPECT_FALSE(fs::exists(stale));
    EXPECT_FALSE(
        identify(gguf::Model::open(request.dense_out, {.allow_missing_experts = true})).whole);
  }
}

TEST(DenseOnly, TheDiskMustHoldBoth) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.dense_out = directory.file("dense.gguf");
  const uint64_t pack_bytes = bench.pack().file_bytes;
  fs::remove(bench.out);
  request.calls.fstatvfs = [&](int fd, struct statvfs* out) {
    const int result = ::fstatvfs(fd, out);
    out->f_frsize = 1;
    out->f_bavail = pack_bytes + 1000;
    return result;
  };
  expect_words(message_of(ErrorKind::Io, [&] { write_pack(request); }), {"more are needed"});
  request.dense_out.clear();
  write_pack(request);
}

TEST(Identity, TellsFineTunesOfOneShapeApart) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const PackHeader header = Pack::open(bench.out).header();
  EXPECT_EQ(pack_mismatch(header, identify(bench.model)), "");
  const PackBench tuned(directory, {.seed = 2, .name = "tuned"});
  EXPECT_EQ(tuned.model.header_id(), bench.model.header_id());
  expect_words(pack_mismatch(header, identify(tuned.model)), {"same shape"});
  const PackBench noted(directory, {.name = "noted", .note = "a modeL"});
  expect_words(pack_mismatch(header, identify(noted.model)), {"metadata"});
}

}  // namespace
}  // namespace penstock::experts::test
