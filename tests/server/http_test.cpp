// Who may ask, and what is no request: keys, hosts, origins, sizes, framing.
#include <gtest/gtest.h>

#include "serving.h"

namespace penstock::server::test {
namespace {

TEST(Serving, KeysHostsAndOrigins) {
  ServingOptions setup;
  setup.server.api_keys = {"secret"};
  Serving serving(setup);
  serving.wait_until_ready();
  const httplib::Headers key = {{"Authorization", "Bearer secret"}};
  EXPECT_EQ(serving.get("/v1/models").first, 401);
  EXPECT_EQ(code(serving.get("/v1/models")), "invalid_api_key");
  EXPECT_EQ(serving.get("/metrics").first, 401);
  EXPECT_EQ(serving.get("/health").first, 200);
  EXPECT_EQ(serving.get("/v1/models", key).first, 200);
  EXPECT_EQ(serving.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}, key).first, 200);
  EXPECT_EQ(serving.post("/v1/completions", {{"prompt", "a"}}).first, 401);

  const auto with = [&](const httplib::Headers& more) {
    httplib::Headers headers = key;
    headers.insert(more.begin(), more.end());
    return serving.get("/v1/models", headers).first;
  };
  EXPECT_EQ(with({{"Host", "evil.example"}}), 403);
  EXPECT_EQ(with({{"Host", "localhost:99"}}), 200);
  EXPECT_EQ(with({{"Origin", "http://evil.example"}}), 403);
  EXPECT_EQ(with({{"Origin", "null"}}), 403);
  EXPECT_EQ(with({{"Origin", "http://localhost:3000"}}), 200);
  const auto preflight = serving.client().Options(
      "/v1/chat/completions",
      {{"Origin", "http://localhost:3000"}, {"Access-Control-Request-Headers", "authorization"}});
  ASSERT_TRUE(preflight);
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->get_header_value("Access-Control-Allow-Origin"), "http://localhost:3000");
  EXPECT_EQ(preflight->get_header_value("Access-Control-Allow-Headers"), "authorization");
}

TEST(Serving, RefusesMalformedAndOversizedRequests) {
  ServingOptions setup;
  setup.server.limits.body_bytes = 10000;
  setup.server.limits.head_seconds = 0.3;
  setup.server.limits.body_seconds = 0.3;
  Serving serving(setup);
  serving.wait_until_ready();
  const auto status = [&](const std::string& text) {
    Raw raw(serving.port());
    EXPECT_TRUE(raw.connected());
    raw.send(text);
    const std::string reply = raw.receive_all();
    return reply.size() > 12 && reply.starts_with("HTTP/1.1 ") ? std::stoi(reply.substr(9, 3)) : 0;
  };
  const std::string close = "Connection: close\r\n";
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n" + close;
  EXPECT_EQ(status(get + "\r\n"), 200);
  EXPECT_EQ(status("GET /health HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/3.9\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(status(get + "Nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status(get + "A : b\r\n\r\n"), 400);
  EXPECT_EQ(status(get + "A: b\r\n folded\r\n\r\n"), 400);
  EXPECT_EQ(status(get + std::string("A: \0\r\n\r\n", 8)), 400);
  EXPECT_EQ(status("\x16\x03\x01\x02"), 400);
  EXPECT_EQ(status("G"), 408);
  EXPECT_EQ(status(get + "X: " + std::string(9000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(get + "X: " + std::string(200000, 'a')), 431);
  std::string many = get;
  for (int i = 0; i < 5000; ++i) many += "A" + std::to_string(i) + ": b\r\n";
  EXPECT_EQ(status(many + "\r\n"), 431);
  EXPECT_EQ(status("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n"), 414);
  EXPECT_EQ(status("GET /" + std::string(100000, 'a')), 414);
  EXPECT_EQ(status(get + "Range: bytes=" + std::string(8000, '0') + "-1\r\n\r\n"), 200);
  EXPECT_EQ(status("BREW /health HTTP/1.1\r\nHost: localhost\r\n" + close + "\r\n"), 400);
  EXPECT_EQ(status("DELETE /health HTTP/1.1\r\nHost: localhost\r\n" + close + "\r\n"), 405);

  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + close;
  EXPECT_EQ(status(post + "\r\n"), 411);
  EXPECT_EQ(status(post + "Content-Length: 5x\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post + "Content-Length: -5\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post + "Transfer-Encoding: gzip\r\n\r\nhello"), 501);
  EXPECT_EQ(status(post + "Content-Length: 5\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post + "Content-Length: 99999999999\r\n\r\nhello"), 413);
  EXPECT_EQ(status(post + "Content-Length: 99999999999999999999999\r\n\r\nhello"), 400);
  EXPECT_EQ(status(post_text("/v1/completions", std::string(10001, ' '), close)), 413);
  EXPECT_EQ(status(post + "Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"), 415);
  EXPECT_EQ(status(post + "Content-Type: multipart/form-data; boundary=a\r\nContent-Length: 5\r\n"
                          "\r\nhello"),
            415);
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"), 400);
  std::string tiny = post + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20000; ++i) tiny += "1\r\n \r\n";
  EXPECT_EQ(status(tiny), 413);
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\n" + std::string(50000, '1')), 413);
  const std::string good = Json{{"prompt", "a"}, {"max_tokens", 1}}.dump();
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\n" + fmt::format("{:x}", good.size()) +
                   "\r\n" + good + "\r\n0\r\n\r\n"),
            200);
  EXPECT_EQ(status(post_text("/v1/completions", good, close + "Expect: 100-continue\r\n")), 100);
}

TEST(Serving, AConnectionIsUsedAgainUnlessABodyIsInTheWay) {
  Serving serving;
  serving.wait_until_ready();
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string body = Json{{"prompt", "a"}, {"max_tokens", 1}}.dump();
  const auto count = [](const std::string& text) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find("HTTP/1.1 ", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  {  // three requests in one go
    Raw raw(serving.port());
    raw.send(get + post_text("/v1/completions", body) +
             "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(count(raw.receive_all()), 3U);
  }
  {  // a body that nobody read is not the next request
    Raw raw(serving.port());
    raw.send("POST /v1/nothing HTTP/1.1\r\nHost: evil.example\r\nContent-Length: " +
             std::to_string(get.size()) + "\r\n\r\n" + get);
    const std::string reply = raw.receive_all();
    EXPECT_EQ(count(reply), 1U) << reply;
    EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  }
}

}  // namespace
}  // namespace penstock::server::test
