// Interrupted rewriting: what is there is found, believed only if it is whole, and gone on with.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "gguf/raw_gguf.h"
#include "models/harness.h"
#include "models/small_disk.h"
#include "models/tiny_models.h"
#include "surgery/rewrite_journal.h"
#include "surgery/rewritten.h"

namespace penstock::surgery {
namespace {

namespace fs = std::filesystem;
using gguf::TypeId;
using gguf::test::error_of;

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto old = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(old ^ 0x10));
}

// Prunes and requantises a tiny model of some 600 pieces, 16 of a batch and thread.
class Resume : public ::testing::Test {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.n_expert = 32;
    source_ = penstock::testing::write_tiny(folder_.path(), "qwen4exp", options);
    model_.emplace(gguf::Model::open(source_));
    plan_ = plan();
    whole_ = carry_out(plan_, path("whole.gguf"));
    bytes_ = read_all(path("whole.gguf"));
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string out() const { return path("out.gguf"); }
  std::string partial() const { return out() + ".partial"; }
  std::string journal() const { return out() + ".journal"; }

  RewritePlan plan(uint32_t first_kept = 4, TypeId type = TypeId::Q4_0) const {
    RewritePlan plan = copy_plan(*model_);
    std::vector<uint32_t> kept(16);
    std::iota(kept.begin(), kept.end(), first_kept);
    const std::vector<MoeLayer> layers = moe_layers(*model_);
    apply_keep_map(map_for(*model_, {kept}), layers, "test", &plan);
    TypeRules rules;
    rules.experts = type;
    apply_types(rules, &plan);
    return plan;
  }

  using More = std::function<void(RewriteRequest*)>;
  // Stops after this many batches.
  void interrupt(const RewritePlan& plan, int n_batches, const More& also = {}) const {
    std::atomic<bool> cancel{false};
    int n = 0;
    const std::string message = error_of(ErrorKind::Cancelled, [&] {
      carry_out(plan, out(), 1, [&](RewriteRequest* request) {
        request->cancel = &cancel;
        request->progress = [&](std::string_view what, uint64_t, uint64_t) {
          if (what == "reading" && ++n == n_batches) cancel = true;
        };
        if (also) also(request);
      });
    });
    EXPECT_CONTAINS(message, "the same command goes on");
    ASSERT_FALSE(fs::exists(out()));
    ASSERT_TRUE(fs::exists(partial()));
  }

  // Goes on and compares everything with the uninterrupted run.
  RewriteResult go_on(const More& also = {}) const {
    const RewriteResult result = carry_out(plan_, out(), 2, also);
    expect_whole(result);
    return result;
  }

  void expect_whole(const RewriteResult& result) const {
    EXPECT_TRUE(read_all(out()) == bytes_);
    EXPECT_FALSE(fs::exists(partial()));
    EXPECT_FALSE(fs::exists(journal()));
    ASSERT_EQ(result.encoded.size(), whole_.encoded.size());
    EXPECT_EQ(result.n_encoded, whole_.n_encoded);
    EXPECT_EQ(result.bytes, whole_.bytes);
    for (size_t i = 0; i < whole_.encoded.size(); ++i) {
      const ErrorSums &a = result.encoded[i].errors, &b = whole_.encoded[i].errors;
      EXPECT_EQ(result.encoded[i].tensor->source->name, whole_.encoded[i].tensor->source->name);
      EXPECT_EQ(a.xx, b.xx);
      EXPECT_EQ(a.ee, b.ee);
      EXPECT_EQ(a.yy, b.yy);
      EXPECT_EQ(a.wee, b.wee);
      EXPECT_EQ(a.worst, b.worst);
      EXPECT_EQ(a.worst_at, b.worst_at);
    }
  }

  penstock::testing::TemporaryFolder folder_;
  std::string source_, bytes_;
  std::optional<gguf::Model> model_;
  RewritePlan plan_;
  RewriteResult whole_;
};

TEST_F(Resume, AfterAnyBatchAndMoreThanOnce) {
  uint64_t before = 0;
  for (const int n : {1, 5, 20}) {
    interrupt(plan_, n);
    const RewriteResult result = go_on();
    EXPECT_GT(result.resumed_bytes, before);
    EXPECT_EQ(result.read_bytes < whole_.read_bytes, true);
    before = result.resumed_bytes;
    fs::remove(out());
  }
  interrupt(plan_, 2);
  interrupt(plan_, 3);
  interrupt(plan_, 1);
  const RewriteResult result = go_on();
  EXPECT_GT(result.resumed_encoded, 0u);
  EXPECT_LT(result.resumed_encoded, result.n_encoded);
}

TEST_F(Resume, AfterBeingKilled) {
  const int n_batches = [&] {
    int n = 0;
    carry_out(plan_, path("count.gguf"), 1, [&](RewriteRequest* request) {
      request->progress = [&](std::string_view, uint64_t, uint64_t) { ++n; };
    });
    return n;
  }();
  ASSERT_GT(n_batches, 10);
  for (const int last : {1, n_batches / 2, n_batches - 1, n_batches}) {
    const pid_t child = fork();
    if (child == 0) {
      int n = 0;
      carry_out(plan_, out(), 1, [&](RewriteRequest* request) {
        request->progress = [&](std::string_view, uint64_t, uint64_t) {
          if (++n == last) ::kill(::getpid(), SIGKILL);
        };
      });
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_FALSE(fs::exists(out()));
    EXPECT_THROW(gguf::Model::open(partial()), Error);
    const RewriteResult result = go_on();
    EXPECT_GT(result.resumed_bytes, 0u);
    EXPECT_EQ(result.read_bytes == 0, last == n_batches);
    fs::remove(out());
  }
}

TEST_F(Resume, BelievesNothingThatIsNotWhole) {
  interrupt(plan_, 12);
  const std::string good_partial = read_all(partial()), good_journal = read_all(journal());
  const auto restore = [&] {
    fs::remove(out());
    std::ofstream(partial(), std::ios::binary) << good_partial;
    std::ofstream(journal(), std::ios::binary) << good_journal;
  };
  const uint64_t most = go_on().resumed_bytes;
  const gguf::Model done = gguf::Model::open(out());
  const auto first = static_cast<int64_t>(done.tensors().front().offset);

  const auto after = [&](const std::function<void()>& damage) {
    restore();
    damage();
    return go_on().resumed_bytes;
  };
  EXPECT_EQ(after([] {}), most);
  // The file: an edited byte costs its piece, a lost end everything behind it.
  const uint64_t edited = after([&] { flip(partial(), first + 3); });
  EXPECT_LT(edited, most);
  EXPECT_GT(edited, most / 2);
  EXPECT_LT(after([&] { fs::resize_file(partial(), static_cast<uint64_t>(first) + 4000); }),
            most / 2);
  // Without its file the journal vouches for nothing, but for what is zeros anyway.
  EXPECT_LT(after([&] { fs::remove(partial()); }), most / 10);
  // The journal: a torn or changed record costs its piece, a changed header everything.
  const auto records = static_cast<int64_t>(sizeof(JournalHeader));
  constexpr auto kRecord = static_cast<int64_t>(sizeof(JournalRecord));
  const uint64_t torn = after([&] { fs::resize_file(journal(), good_journal.size() - 7); });
  EXPECT_LT(torn, most);
  EXPECT_GT(torn, most / 2);
  EXPECT_LT(after([&] { flip(journal(), records + kRecord + 20); }), most);
  EXPECT_EQ(after([&] { flip(journal(), 20); }), 0u);
  EXPECT_EQ(after([&] { fs::resize_file(journal(), 10); }), 0u);
  EXPECT_EQ(after([&] { fs::remove(journal()); }), 0u);
  // Two records in each other's place, each with a sound checksum.
  EXPECT_LT(after([&] {
              std::string swapped = good_journal;
              const std::string one = swapped.substr(sizeof(JournalHeader), sizeof(JournalRecord));
              swapped.replace(sizeof(JournalHeader) + 5 * sizeof(JournalRecord), one.size(), one);
              std::ofstream(journal(), std::ios::binary) << swapped;
            }),
            most);
}

TEST_F(Resume, AnotherJobStartsOver) {
  const RewritePlan other = plan(5);
  carry_out(other, path("other.gguf"));
  interrupt(plan_, 12);
  const RewriteResult result = carry_out(other, out());
  EXPECT_EQ(result.resumed_bytes, 0u);
  EXPECT_TRUE(read_all(out()) == read_all(path("other.gguf")));
  fs::remove(out());
  // Types, scales, importance, and the source's time of change are part of the job.
  Imatrix imatrix;
  imatrix.tensors["blk.0.ffn_up_exps.weight"] = {
      static_cast<int64_t>(model_->require("blk.0.ffn_up_exps.weight").ne[0]),
      std::vector<float>(model_->require("blk.0.ffn_up_exps.weight").ne[0], 1.0f),
      {1.0f}};
  for (const More& also : {More([](RewriteRequest* r) { r->positive_scales = true; }),
                           More([&](RewriteRequest* r) { r->imatrix = &imatrix; })}) {
    interrupt(plan_, 3, also);
    EXPECT_EQ(go_on().resumed_bytes, 0u);
    fs::remove(out());
  }
  interrupt(plan(4, TypeId::Q8_0), 12);
  EXPECT_EQ(go_on().resumed_bytes, 0u);
  fs::remove(out());
  interrupt(plan_, 12);
  fs::last_write_time(source_, fs::last_write_time(source_) + std::chrono::seconds(1));
  EXPECT_EQ(go_on().resumed_bytes, 0u);
}

// Killed between the last piece and the end: what has its name already is recognised.
TEST_F(Resume, AmongTheNames) {
  const auto naming = [&](const std::string& name, uint64_t shard_bytes) {
    std::string journal;
    carry_out(plan_, name, 1, [&](RewriteRequest* request) {
      request->max_shard_bytes = shard_bytes;
      request->progress = [&](std::string_view, uint64_t done, uint64_t total) {
        if (done == total) journal = read_all(name + ".journal");
      };
    });
    JournalHeader header;
    std::memcpy(&header, journal.data(), sizeof header);
    header.naming = 1;
    header.sum = xxh64(std::as_bytes(std::span(&header, 1)).first(offsetof(JournalHeader, sum)));
    std::memcpy(journal.data(), &header, sizeof header);
    std::ofstream(name + ".journal", std::ios::binary) << journal;
  };
  naming(out(), 0);
  EXPECT_EQ(go_on().read_bytes, 0u);
  // Another file in its place is not touched.
  fs::remove(out());
  naming(out(), 0);
  std::ofstream(out()) << "mine";
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { carry_out(plan_, out()); }), "--force");
  EXPECT_EQ(read_all(out()), "mine");

  const std::string set = path("set.gguf");
  naming(set, bytes_.size() / 3);
  const auto shards = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("set")) files[name] = read_all(entry.path().string());
    }
    files.erase("set.gguf.journal");
    return files;
  };
  const auto all = shards();
  ASSERT_GT(all.size(), 2u);
  // The last shards get their names first.
  const std::string front = path(all.begin()->first);
  fs::rename(front, front + ".partial");
  const RewriteResult result =
      carry_out(plan_, set, 1, [&](RewriteRequest* r) { r->max_shard_bytes = bytes_.size() / 3; });
  EXPECT_EQ(result.read_bytes, 0u);
  EXPECT_TRUE(shards() == all);
}

TEST_F(Resume, AfterAWriteThatFails) {
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  int n = 0;
  const std::string message = error_of(ErrorKind::Io, [&] {
    carry_out(plan_, out(), 1, [&](RewriteRequest* request) {
      request->progress = [&](std::string_view, uint64_t, uint64_t) {
        const struct rlimit limit { bytes_.size() / 2, old.rlim_max };
        if (++n == 2) ::setrlimit(RLIMIT_FSIZE, &limit);
      };
    });
  });
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  EXPECT_CONTAINS(message, "out.gguf.partial");
  EXPECT_CONTAINS(message, "the same command goes on");
  EXPECT_FALSE(fs::exists(out()));
  EXPECT_GT(go_on().resumed_bytes, bytes_.size() / 10);
}

// Said before anything is written, with the figures.
TEST_F(Resume, WithoutRoomItDoesNotBegin) {
  fs::create_directory(path("disk"));
  const penstock::testing::SmallDisk disk(path("disk"), "64k");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted here: it takes root";
  ASSERT_GT(bytes_.size(), 65536u);
  const std::string message =
      error_of(ErrorKind::Io, [&] { carry_out(plan_, path("disk/out.gguf")); });
  EXPECT_CONTAINS(message, "are needed for " + path("disk/out.gguf"));
  EXPECT_CONTAINS(message, std::to_string(bytes_.size()) + " bytes");
  EXPECT_CONTAINS(message, "64.0 KiB are free there");
  EXPECT_CONTAINS(message, "another folder with -o");
  EXPECT_TRUE(fs::is_empty(path("disk")));
}

TEST_F(Resume, OneProcessAtATime) {
  std::string message;
  carry_out(plan_, out(), 1, [&](RewriteRequest* request) {
    request->progress = [&](std::string_view, uint64_t, uint64_t) {
      if (message.empty()) {
        message = error_of(ErrorKind::Io, [&] { carry_out(plan_, out()); });
      }
    };
  });
  EXPECT_CONTAINS(message, "another process");
  EXPECT_TRUE(read_all(out()) == bytes_);
}

}  // namespace
}  // namespace penstock::surgery
