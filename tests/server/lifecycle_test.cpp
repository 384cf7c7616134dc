// Loading, waiting, cancelling, failing and stopping, over real sockets.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/clock.h"
#include "serving.h"

namespace penstock::server::test {
namespace {

// A backend of reads that hands everything on.
class Wrapped : public experts::IoBackend {
 public:
  explicit Wrapped(std::unique_ptr<IoBackend> inner) : inner_(std::move(inner)) {}
  size_t capacity() const noexcept override { return inner_->capacity(); }
  size_t in_flight() const noexcept override { return inner_->in_flight(); }
  void submit(std::span<const experts::ReadOp> batch) override { inner_->submit(batch); }
  size_t poll(std::span<experts::ReadResult> out) override { return seen(out, inner_->poll(out)); }
  size_t wait(std::span<experts::ReadResult> out, size_t min) override {
    return seen(out, inner_->wait(out, min));
  }
  int register_buffers(std::span<const experts::MemoryRange> ranges) override {
    return inner_->register_buffers(ranges);
  }
  experts::Engine engine() const noexcept override { return inner_->engine(); }

 protected:
  // A look at n results on their way.
  virtual size_t seen(std::span<experts::ReadResult>, size_t n) { return n; }

 private:
  std::unique_ptr<IoBackend> inner_;
};

TEST(Serving, LoadingAndFailingShow) {
  std::atomic<bool> go{false};
  ServingOptions setup;
  setup.before_loading = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  {
    Serving serving(setup);
    const auto [status, health] = serving.get("/health");
    EXPECT_EQ(status, 503);
    EXPECT_EQ(health["status"], "loading");
    EXPECT_TRUE(health.contains("progress"));
    EXPECT_EQ(code(serving.chat({{"messages", user("a")}})), "model_loading");
    EXPECT_EQ(code(serving.get("/v1/models")), "model_loading");
    EXPECT_EQ(serving.metric("penstock_ready"), 0);
    go = true;
    serving.wait_until_ready();
    EXPECT_EQ(serving.get("/health").first, 200);
  }
  setup.before_loading = [] { fail(ErrorKind::Io, "the disk is on fire"); };
  Serving serving(setup);
  while (serving.server().phase() == Phase::Loading) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto [status, health] = serving.get("/health");
  EXPECT_EQ(status, 503);
  EXPECT_EQ(health["status"], "failed");
  EXPECT_EQ(health["error"], "the disk is on fire");
  EXPECT_EQ(code(serving.chat({{"messages", user("a")}})), "model_failed");
  EXPECT_TRUE(serving.server().failure());
}

// Reads that take a while: a prompt is slow enough to look at the server meanwhile.
class Slow final : public Wrapped {
 public:
  Slow(std::unique_ptr<IoBackend> inner, const std::atomic<int>& milliseconds)
      : Wrapped(std::move(inner)), milliseconds_(milliseconds) {}
  void submit(std::span<const experts::ReadOp> batch) override {
    if (!batch.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    Wrapped::submit(batch);
  }

 private:
  const std::atomic<int>& milliseconds_;
};

// Reads that fail while `broken` is set.
class Breaking final : public Wrapped {
 public:
  Breaking(std::unique_ptr<IoBackend> inner, const std::atomic<bool>& broken)
      : Wrapped(std::move(inner)), broken_(broken) {}

 private:
  size_t seen(std::span<experts::ReadResult> out, size_t n) override {
    for (size_t i = 0; broken_ && i < n; ++i) out[i].result = -EIO;
    return n;
  }
  const std::atomic<bool>& broken_;
};

// Weights that decode to NaN: the scale of a block is a NaN of 16 bits.
class Poison final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void submit(std::span<const experts::ReadOp> batch) override {
    for (const experts::ReadOp& op : batch) ops_[op.tag] = op;
    Wrapped::submit(batch);
  }

 private:
  size_t seen(std::span<experts::ReadResult> out, size_t n) override {
    for (size_t i = 0; i < n; ++i) {
      const experts::ReadOp& op = ops_[out[i].tag];
      if (out[i].result > 0) std::memset(op.data, 0xFF, static_cast<size_t>(out[i].result));
    }
    return n;
  }
  std::map<uint64_t, experts::ReadOp> ops_;
};

ServingOptions slow(const std::atomic<int>& milliseconds) {
  ServingOptions setup;
  setup.decorate = [&](std::unique_ptr<experts::IoBackend> inner) {
    return std::make_unique<Slow>(std::move(inner), milliseconds);
  };
  return setup;
}

const std::vector<int32_t> kLongPrompt(400, 10);

TEST(Serving, HealthAndMetricsAnswerWhileAPromptRuns) {
  const std::atomic<int> delay{20};
  Serving serving(slow(delay));
  serving.wait_until_ready();
  std::thread other([&] {
    EXPECT_EQ(serving.complete({{"prompt", kLongPrompt}, {"max_tokens", 2}}).first, 200);
  });
  while (serving.get("/health").second["requests"]["running"] == 0) {
  }
  double slowest = 0;
  int looked = 0;
  double bytes_before = 0, bytes_after = 0;
  while (serving.get("/health").second["requests"]["running"] == 1) {
    const int64_t started = now_ns();
    const double bytes = serving.metric("penstock_read_bytes_total{reason=\"prompt\"}");
    slowest = std::max(slowest, seconds_since(started));
    (looked++ == 0 ? bytes_before : bytes_after) = bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  other.join();
  EXPECT_GT(looked, 5);
  EXPECT_GT(bytes_after, bytes_before);  // and they move while it runs
  // The bound of the product is 50 ms; a busy test machine gets some grace.
  EXPECT_LT(slowest, 0.5);
}

TEST(Serving, AClientThatGoesAwayEndsItsRequest) {
  const std::atomic<int> delay{20};
  ServingOptions setup = slow(delay);
  setup.chunk = 512;  // the whole prompt is one chunk of many layers
  Serving serving(setup);
  serving.wait_until_ready();
  for (const bool stream : {false, true}) {
    const double before =
        std::max(0.0, serving.metric("penstock_requests_total{outcome=\"client_closed_request\"}"));
    Raw raw(serving.port());
    ASSERT_TRUE(raw.send(
        post_text("/v1/completions", Json{{"prompt", kLongPrompt}, {"stream", stream}}.dump())));
    while (serving.get("/health").second["requests"]["running"] == 0) {
    }
    const int64_t started = now_ns();
    raw.close();
    while (serving.get("/health").second["requests"]["running"] == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_LT(seconds_since(started), 2);
    EXPECT_EQ(serving.metric("penstock_requests_total{outcome=\"client_closed_request\"}"),
              before + 1);
    EXPECT_EQ(serving.metric("penstock_tokens_total{kind=\"completion\"}"), 0);
  }
  // The next request is not harmed by the half-finished chunk.
  const std::atomic<int> none{0};
  Serving fresh(slow(none));
  fresh.wait_until_ready();
  const Json body = {{"prompt", "Hello"}, {"seed", 5}, {"max_tokens", 20}};
  EXPECT_EQ(serving.complete(body).second["choices"], fresh.complete(body).second["choices"]);
}

TEST(Serving, RequestsTimeOut) {
  const std::atomic<int> delay{10};
  ServingOptions setup = slow(delay);
  setup.server.limits.request_seconds = 0.3;
  setup.server.limits.first_seconds = 0.05;
  Serving serving(setup);
  serving.wait_until_ready();
  const auto whole = serving.complete({{"prompt", kLongPrompt}});
  EXPECT_EQ(whole.first, 504);
  EXPECT_EQ(code(whole), "request_timeout");
  // A stream that has begun ends with the error as an event.
  const auto events = serving.stream("/v1/completions", {{"prompt", kLongPrompt}});
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(Json::parse(events.back())["error"]["code"], "request_timeout");
}

TEST(Serving, TheQueueIsBoundedAndServedInTurn) {
  std::atomic<int> delay{10};
  ServingOptions setup = slow(delay);
  setup.server.limits.queue = 2;
  Serving serving(setup);
  serving.wait_until_ready();
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  const auto ask = [&] {
    answered += serving.complete({{"prompt", kLongPrompt}, {"max_tokens", 1}}).first == 200;
  };
  const auto until = [&](const char* what, int n) {
    while (serving.get("/health").second["requests"][what] != n) {
    }
  };
  threads.emplace_back(ask);
  until("running", 1);
  threads.emplace_back(ask);
  threads.emplace_back(ask);
  until("waiting", 2);
  const auto full = serving.complete({{"prompt", "a"}});
  EXPECT_EQ(full.first, 503);
  EXPECT_EQ(code(full), "queue_full");
  delay = 0;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 3);
}

TEST(Serving, StopsGracefully) {
  std::atomic<int> delay{5};
  Serving serving(slow(delay));
  serving.wait_until_ready();
  std::thread running([&] {
    EXPECT_EQ(serving.complete({{"prompt", kLongPrompt}, {"max_tokens", 3}}).first, 200);
  });
  while (serving.get("/health").second["requests"]["running"] == 0) {
  }
  std::thread stopping([&] { serving.server().stop(); });
  while (serving.server().phase() != Phase::Stopping) {
  }
  EXPECT_EQ(code(serving.chat({{"messages", user("a")}})), "server_stopping");
  stopping.join();
  running.join();
  EXPECT_LT(serving.get("/health").first, 0);  // nobody listens any more
}

TEST(Serving, CutsAtTheDeadline) {
  std::atomic<int> delay{20};
  ServingOptions setup = slow(delay);
  setup.server.limits.drain_seconds = 0.2;
  setup.server.limits.first_seconds = 0.05;
  Serving serving(setup);
  serving.wait_until_ready();
  std::thread whole([&] {
    EXPECT_EQ(code(serving.complete({{"prompt", kLongPrompt}})), "server_stopping");
  });
  std::thread streamed([&] {
    const auto events = serving.stream("/v1/completions", {{"prompt", kLongPrompt}});
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(Json::parse(events.back())["error"]["code"], "server_stopping");
  });
  const auto busy = [&] {
    const Json requests = serving.get("/health").second["requests"];
    return requests["running"].get<int>() + requests["waiting"].get<int>();
  };
  while (busy() < 2) {
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the stream begins
  const int64_t started = now_ns();
  serving.server().stop();
  EXPECT_LT(seconds_since(started), 5);
  whole.join();
  streamed.join();
}

TEST(Serving, AFailedReadIsAnErrorNotAnAnswer) {
  std::atomic<bool> broken{false};
  ServingOptions setup;
  setup.decorate = [&](std::unique_ptr<experts::IoBackend> inner) {
    return std::make_unique<Breaking>(std::move(inner), broken);
  };
  Serving serving(setup);
  serving.wait_until_ready();
  const Json body = {{"prompt", "Hello"}, {"seed", 5}, {"max_tokens", 400}, {"ignore_eos", true}};
  const Json sound = serving.complete(body).second;

  broken = true;
  const auto whole = serving.complete({{"prompt", "Something else altogether"}});
  EXPECT_EQ(whole.first, 500);
  EXPECT_EQ(code(whole), "model_read_failed");
  EXPECT_EQ(whole.second["error"]["type"], "server_error");
  EXPECT_EQ(serving.complete({{"prompt", "Another"}, {"stream", true}}).first, 500);

  // In the middle of a stream the error is its last event, and there is no [DONE].
  broken = false;
  Raw raw(serving.port(), 4096);
  Json streamed = body;
  streamed["stream"] = true;
  ASSERT_TRUE(raw.send(post_text("/v1/completions", streamed.dump(), "Connection: close\r\n")));
  std::string text = raw.receive(200);
  while (text.find("data: ") == std::string::npos) text += raw.receive(200);
  broken = true;
  text += raw.receive_all();
  broken = false;
  if (text.find("\"error\"") == std::string::npos) {
    GTEST_SKIP() << "the answer was complete before the disk broke";
  }
  EXPECT_NE(text.find("model_read_failed"), std::string::npos) << text;
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(text.ends_with("0\r\n\r\n"));

  const Json later = serving.complete(body).second;  // and it recovers
  EXPECT_EQ(later["choices"], sound["choices"]);
}

// Writes the file's last byte again, at a time of its own.
void overwrite(const std::string& path) {
  const auto before = std::filesystem::last_write_time(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  ASSERT_TRUE(file);
  std::filesystem::last_write_time(path, before + std::chrono::seconds(1));
}

void cut(const std::string& path) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
}

void expect_failed(const Serving& serving) {
  const auto [status, health] = serving.get("/health");
  EXPECT_EQ(status, 503);
  EXPECT_EQ(health["status"], "failed");
  EXPECT_NE(health.value("error", "").find(serving.path()), std::string::npos) << health;
  EXPECT_EQ(serving.metric("penstock_ready"), 0);
}

TEST(Serving, AChangedFileIsAnErrorNotAnAnswer) {
  for (const auto& change : {overwrite, cut}) {
    Serving serving;
    serving.wait_until_ready();
    const Json body = {{"prompt", "Hello"}, {"max_tokens", 20}, {"ignore_eos", true}};
    ASSERT_EQ(serving.complete(body).first, 200);
    const double prompt_reads = serving.metric("penstock_read_bytes_total{reason=\"prompt\"}");
    const std::string copy = serving.path() + ".copy";
    std::filesystem::copy_file(serving.path(), copy);
    const auto time = std::filesystem::last_write_time(serving.path());

    change(serving.path());
    const Json streamed = {{"prompt", "Something else altogether"}, {"stream", true}};
    const auto first = serving.complete(streamed);  // a status, not a stream that breaks off
    EXPECT_EQ(first.first, 500);
    EXPECT_EQ(code(first), "model_file_changed");
    EXPECT_EQ(first.second["error"]["type"], "server_error");
    expect_failed(serving);
    EXPECT_EQ(serving.metric("penstock_tokens_total{kind=\"completion\"}"), 20);
    EXPECT_EQ(serving.metric("penstock_read_bytes_total{reason=\"prompt\"}"), prompt_reads);

    // What was read before stays in memory: the old size and time do not make it sound again.
    std::filesystem::copy_file(copy, serving.path(),
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::last_write_time(serving.path(), time);
    const auto second = serving.chat({{"messages", user("Hello")}});
    EXPECT_EQ(second.first, 500);
    EXPECT_EQ(code(second), "model_file_changed");
    expect_failed(serving);
    EXPECT_TRUE(serving.server().phase() == Phase::Changed);
  }
}

TEST(Serving, AFileCutDuringAnAnswerEndsItAndThoseThatWait) {
  const std::atomic<int> delay{2};
  Serving serving(slow(delay));
  serving.wait_until_ready();
  Raw raw(serving.port());
  const Json body = {
      {"prompt", "Hello"}, {"max_tokens", 400}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_TRUE(raw.send(post_text("/v1/completions", body.dump(), "Connection: close\r\n")));
  std::string text = raw.receive(200);
  while (text.find("data: ") == std::string::npos) text += raw.receive(200);
  std::pair<int, Json> waited;
  std::thread other([&] { waited = serving.complete({{"prompt", "Hello"}}); });
  while (serving.get("/health").second["requests"]["waiting"] == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cut(serving.path());
  text += raw.receive_all();
  other.join();
  EXPECT_NE(text.find("model_file_changed"), std::string::npos) << text;
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
  EXPECT_EQ(waited.first, 500);
  EXPECT_EQ(code(waited), "model_file_changed");
  expect_failed(serving);
}

TEST(Serving, AFileReplacedUnderItsNameLeavesTheOpenOneAsItIs) {
  Serving serving;
  serving.wait_until_ready();
  const Json body = {{"prompt", "Hello"}, {"max_tokens", 20}, {"seed", 1}};
  const Json sound = serving.complete(body).second;
  std::ofstream(serving.path() + ".new") << "another file";
  std::filesystem::rename(serving.path() + ".new", serving.path());
  const Json other = {{"prompt", "Something else altogether"}, {"max_tokens", 20}};
  EXPECT_EQ(serving.complete(other).first, 200);
  EXPECT_EQ(serving.complete(body).second["choices"], sound["choices"]);
  EXPECT_EQ(serving.get("/health").second["status"], "ok");
}

TEST(Serving, NonFiniteNumbersAreAnError) {
  ServingOptions setup;
  setup.decorate = [](std::unique_ptr<experts::IoBackend> inner) {
    return std::make_unique<Poison>(std::move(inner));
  };
  Serving serving(setup);
  serving.wait_until_ready();
  const auto reply = serving.chat({{"messages", user("Hello")}});
  EXPECT_EQ(reply.first, 500);
  EXPECT_EQ(code(reply), "non_finite_numbers");
  EXPECT_EQ(serving.get("/health").second["status"], "ok");
}

}  // namespace
}  // namespace penstock::server::test
