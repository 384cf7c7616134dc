#include "base/map_guard.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace penstock {
namespace {

// Read by the signal handler: `begin` is written last and cleared first.
struct Guarded {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> bytes{0};
  std::atomic<char*> path{nullptr};
};
std::array<Guarded, 1024> g_mappings;

// Only what may be called in a signal handler: no allocation, no formatting library.
class Message {
 public:
  void text(const char* s) noexcept {
    while (*s != '\0' && size_ < sizeof buffer_) buffer_[size_++] = *s++;
  }
  void number(uint64_t value) noexcept {
    char digits[20];
    size_t n = 0;
    do {
      digits[n++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    while (n > 0 && size_ < sizeof buffer_) buffer_[size_++] = digits[--n];
  }
  void send() const noexcept {
    if (::write(STDERR_FILENO, buffer_, size_) < 0) return;  // nobody listens
  }

 private:
  char buffer_[4096];
  size_t size_ = 0;
};

void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Guarded& mapping : g_mappings) {
    const uintptr_t begin = mapping.begin.load();
    if (begin == 0 || address < begin || address - begin >= mapping.bytes.load()) continue;
    const char* path = mapping.path.load();
    Message message;
    message.text("penstock: error: ");
    message.text(path != nullptr ? path : "a mapped file");
    message.text(" can no longer be read at offset ");
    message.number(address - begin);
    message.text(
        ": it was cut short or its disk failed while it was in use; check the file and start "
        "again\n");
    message.send();
    ::_exit(static_cast<int>(ErrorKind::Io));
  }
  ::signal(SIGBUS, SIG_DFL);  // not ours: the access is repeated and has its usual end
}

}  // namespace

void install_map_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void guard_mapping(const void* data, size_t bytes, const std::string& path) {
  char* const copy = ::strdup(path.c_str());
  for (Guarded& mapping : g_mappings) {
    char* unused = nullptr;
    if (!mapping.path.compare_exchange_strong(unused, copy)) continue;
    mapping.bytes.store(bytes);
    mapping.begin.store(reinterpret_cast<uintptr_t>(data));
    return;
  }
  ::free(copy);
}

void unguard_mapping(const void* data) noexcept {
  for (Guarded& mapping : g_mappings) {
    if (mapping.begin.load() != reinterpret_cast<uintptr_t>(data)) continue;
    mapping.begin.store(0);
    ::free(mapping.path.exchange(nullptr));
    return;
  }
}

}  // namespace penstock
