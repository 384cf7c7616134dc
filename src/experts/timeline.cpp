#include "experts/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/file.h"

namespace penstock::experts {
namespace {

constexpr int kScheduler = 1;
constexpr int kTokens = 2;
constexpr int kFirstDiskLane = 10;

}  // namespace

const char* reason_name(ReadReason reason) noexcept {
  switch (reason) {
    case ReadReason::Demand:
      return "demand";
    case ReadReason::Prompt:
      return "prompt";
    case ReadReason::Fill:
      return "fill";
    case ReadReason::Rows:
      return "rows";
    case ReadReason::Spec:
      return "ahead";
  }
  return "?";
}

const char* work_name(Work work) noexcept {
  switch (work) {
    case Work::Dense:
      return "dense";
    case Work::Route:
      return "route";
    case Work::Ahead:
      return "shared expert, predictions";
    case Work::Experts:
      return "experts";
    case Work::Stall:
      return "waiting for reads";
  }
  return "?";
}

Timeline::Timeline(size_t most_events) : most_(most_events) {
  events_.reserve(std::min(most_events, size_t{1} << 16));
}

void Timeline::add(const Event& event) {
  if (events_.size() < most_) {
    events_.push_back(event);
  } else {
    ++lost_;
  }
}

void Timeline::work(Work work, int layer, uint32_t experts, int64_t now) {
  if (since_ns_ != 0 && now > since_ns_) {
    add({since_ns_, now, 0, layer, experts, Kind::Work, static_cast<uint8_t>(work)});
  }
  since_ns_ = now;
}

void Timeline::read(ReadReason reason, uint64_t bytes, int64_t from, int64_t to) {
  add({from, to, bytes, -1, 0, Kind::Read, static_cast<uint8_t>(reason)});
}

void Timeline::token(int64_t now) {
  if (token_ns_ != 0) add({token_ns_, now, 0, -1, 0, Kind::Token, 0});
  token_ns_ = now;
}

std::optional<TokenTimeline> Timeline::typical_token() const {
  std::vector<const Event*> tokens;
  for (const Event& e : events_) {
    if (e.kind == Kind::Token) tokens.push_back(&e);
  }
  if (tokens.size() < 3) return std::nullopt;
  std::vector<const Event*> sorted = tokens;
  std::sort(sorted.begin(), sorted.end(),
            [](const Event* a, const Event* b) { return a->to - a->from < b->to - b->from; });
  const Event* typical = sorted[sorted.size() / 2];
  TokenTimeline out;
  out.token =
      static_cast<size_t>(std::find(tokens.begin(), tokens.end(), typical) - tokens.begin()) + 1;
  out.ns = typical->to - typical->from;
  for (const Event& e : events_) {
    const int64_t from = std::max(e.from, typical->from);
    const int64_t to = std::min(e.to, typical->to);
    if (e.kind == Kind::Token || from >= to) continue;
    out.spans.push_back(
        {e.kind == Kind::Read, e.what, e.layer, e.bytes, from - typical->from, to - from});
  }
  std::stable_sort(out.spans.begin(), out.spans.end(),
                   [](const auto& a, const auto& b) { return a.from_ns < b.from_ns; });
  return out;
}

// Reads that overlap lie in lanes one below the other, as many as were in flight at once.
void Timeline::write(const std::string& path) const {
  std::vector<Event> events = events_;
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.from < b.from; });
  const int64_t origin = events.empty() ? 0 : events.front().from;
  const auto us = [&](int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  std::vector<int64_t> lanes;  // when each is free again
  std::string body;
  size_t n_token = 0;
  for (const Event& e : events) {
    int track = kScheduler;
    std::string name;
    std::string arguments;
    switch (e.kind) {
      case Kind::Work:
        name = work_name(static_cast<Work>(e.what));
        arguments = fmt::format("\"layer\":{},\"experts\":{}", e.layer, e.experts);
        break;
      case Kind::Token:
        track = kTokens;
        name = fmt::format("token {}", ++n_token);
        break;
      case Kind::Read: {
        auto lane =
            std::find_if(lanes.begin(), lanes.end(), [&](int64_t t) { return t <= e.from; });
        if (lane == lanes.end()) lane = lanes.insert(lanes.end(), 0);
        *lane = e.to;
        track = kFirstDiskLane + static_cast<int>(lane - lanes.begin());
        name = reason_name(static_cast<ReadReason>(e.what));
        arguments = fmt::format("\"bytes\":{}", e.bytes);
        break;
      }
    }
    fmt::format_to(std::back_inserter(body),
                   ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"dur\":"
                   "{:.3f},\"args\":{{{}}}}}",
                   name, track, us(e.from - origin), us(e.to - e.from), arguments);
  }
  std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"lost_events\":\"";
  text += fmt::format("{}\"}},\n\"traceEvents\":[", lost_);
  const auto track = [&](int tid, const std::string& name, bool first = false) {
    text += fmt::format(
        "{}\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{\"name\":\"{}"
        "\"}}}}"
        ",\n{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{"
        "\"sort_index\":{}}}}}",
        first ? "" : ",", tid, name, tid, tid);
  };
  track(kScheduler, "compute", true);
  track(kTokens, "tokens");
  for (size_t i = 0; i < lanes.size(); ++i) {
    track(kFirstDiskLane + static_cast<int>(i), fmt::format("disk {}", i + 1));
  }
  AtomicFile out(path);
  out.write(text.data(), text.size());
  out.write(body.data(), body.size());
  constexpr std::string_view kEnd = "\n]}\n";
  out.write(kEnd.data(), kEnd.size());
  out.commit();
}

}  // namespace penstock::experts
