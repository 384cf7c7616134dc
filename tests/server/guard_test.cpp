// Hosts, origins and keys.
#include "server/guard.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "models/tiny_models.h"

namespace penstock::server::test {
namespace {

int status(const std::function<void()>& check) {
  try {
    check();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

TEST(Guard, ReadsHostHeaders) {
  EXPECT_EQ(host_name("Localhost:8080"), "localhost");
  EXPECT_EQ(host_name("example.org."), "example.org");
  EXPECT_EQ(host_name("[::1]:80"), "::1");
  EXPECT_EQ(host_name("127.0.0.1"), "127.0.0.1");
  for (const char* bad : {"", ":80", "[::1", "a:b", "a:80:90", "host:1234567", "[::1]x"}) {
    EXPECT_FALSE(host_name(bad)) << bad;
  }
}

TEST(Guard, LetsInWhatNamesThisMachine) {
  ServerOptions options;
  options.allow_hosts = {"My.Name"};
  options.allow_origins = {"chrome-extension://abc"};
  const Guard guard(options);
  const auto host = [&](const char* text) { return status([&] { guard.check_host(text); }); };
  for (const char* good : {"localhost", "localhost:9", "app.localhost", "127.0.0.1:8080",
                           "127.8.8.8", "[::1]:1", "my.name:80", "192.168.1.9:8080"}) {
    EXPECT_EQ(host(good), 200) << good;
  }
  for (const char* bad : {"evil.example", "localhost.evil.example", "127.0.0.1.nip.io",
                          "notlocalhost", "localhost@evil.example", ""}) {
    EXPECT_EQ(host(bad), 403) << bad;
  }
  const auto origin = [&](const char* text) { return status([&] { guard.check_origin(text); }); };
  for (const char* good : {"http://localhost:3000", "https://127.0.0.1", "http://[::1]:5",
                           "chrome-extension://abc", "http://my.name"}) {
    EXPECT_EQ(origin(good), 200) << good;
  }
  for (const char* bad : {"null", "http://evil.example", "chrome-extension://abcd", "file://",
                          "http://localhost.evil.example", "http://192.168.1.9"}) {
    EXPECT_EQ(origin(bad), 403) << bad;
  }
}

TEST(Guard, AsksForKeys) {
  ServerOptions options;
  EXPECT_EQ(status([&] { Guard(options).check_key(""); }), 200);
  options.api_keys = {"first", "second"};
  const Guard guard(options);
  const auto key = [&](const char* text) { return status([&] { guard.check_key(text); }); };
  EXPECT_EQ(key("Bearer first"), 200);
  EXPECT_EQ(key("bearer second"), 200);
  for (const char* bad : {"", "first", "Bearer ", "Bearer third", "Bearer firs", "Bearer first ",
                          "Bearer firstsecond", "Basic first"}) {
    EXPECT_EQ(key(bad), 401) << bad;
  }
}

TEST(Guard, OtherMachinesNeedKeys) {
  ServerOptions options;
  for (const char* host : {"0.0.0.0", "192.168.1.5", "::", "example.org"}) {
    options.host = host;
    options.api_keys.clear();
    EXPECT_THROW(Guard{options}, Error) << host;
    options.api_keys = {"k"};
    EXPECT_NO_THROW(Guard{options}) << host;
  }
  options.api_keys.clear();
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    options.host = host;
    EXPECT_NO_THROW(Guard{options}) << host;
  }
}

TEST(Guard, ReadsKeyFiles) {
  const penstock::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/keys";
  std::ofstream(path) << "# for the family\n\n  one \r\ntwo # laptop\n";
  chmod(path.c_str(), 0600);
  EXPECT_EQ(read_api_keys(path), (std::vector<std::string>{"one", "two"}));
  std::ofstream(path) << "# nothing\n";
  EXPECT_THROW(read_api_keys(path), Error);
  EXPECT_THROW(read_api_keys(folder.path() + "/missing"), Error);
}

}  // namespace
}  // namespace penstock::server::test
