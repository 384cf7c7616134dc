// penstock serve: an OpenAI-compatible server.
#include <malloc.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/chat_flags.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/runtime_flags.h"
#include "cli/serve_record.h"
#include "cli/version.h"
#include "server/server.h"

namespace penstock::cli {
namespace {

struct Flags {
  RuntimeFlags runtime;
  ChatFlags chat;
  server::ServerOptions server;
  std::string api_key_file, record;
};

std::unique_ptr<engine::Runtime> load(const Flags& flags,
                                      const engine::Runtime::Progress& progress) {
  engine::RuntimeOptions options = flags.runtime.options();
  options.caller_bytes = flags.server.limits.memory_bytes();
  const engine::Runtime::Progress line = progress_line();
  auto runtime =
      engine::Runtime::open(options, [&](std::string_view step, uint64_t done, uint64_t total) {
        line(step, done, total);
        progress(step, done, total);
        if (interrupt_flag()) fail(ErrorKind::Cancelled, "interrupted while loading");
      });
  for (const std::string& warning : runtime->plan().warnings) log::warn("{}", warning);
  return runtime;
}

int run_serve(Flags flags) {
  constexpr std::chrono::milliseconds kLook{50};
  constexpr std::chrono::seconds kFailedFor{1};  // so that whoever polls /health learns the reason
  flags.server.chat_format = flags.chat.format();
  flags.server.reasoning = flags.chat.reasoning();
  flags.server.reasoning_budget = flags.chat.reasoning_budget();
  flags.server.version = version_number();
  if (!flags.record.empty()) flags.server.watch = record_requests(flags.record);
  if (!flags.api_key_file.empty())
    flags.server.api_keys = server::read_api_keys(flags.api_key_file);
  // A heap per core and thread would keep memory that another thread could use.
  mallopt(M_ARENA_MAX, 2);

  std::atomic<bool>& interrupted = interrupt_flag();
  server::Server server(flags.server, [&](const engine::Runtime::Progress& progress) {
    return load(flags, progress);
  });
  server.start();
  const std::string host = flags.server.host.find(':') == std::string::npos
                               ? flags.server.host
                               : "[" + flags.server.host + "]";
  log::info("listening on http://{}:{} (base URL of the API: http://{}:{}/v1)", host, server.port(),
            host, server.port());
  bool announced = false;
  while (!interrupted) {
    std::this_thread::sleep_for(kLook);
    const server::Phase phase = server.phase();
    if (phase == server::Phase::Failed) break;
    if (phase == server::Phase::Ready && !announced) log::info("the model is loaded");
    announced = phase == server::Phase::Ready;
  }
  if (!interrupted && server.failure()) {
    std::this_thread::sleep_for(kFailedFor);
    std::rethrow_exception(server.failure());
  }
  log::info("stopping: the requests that are there have {:.0f} s; again to cut them",
            flags.server.limits.drain_seconds);
  interrupted = false;
  server.stop([&] { return interrupted.load(); });
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  server::ServerOptions& server = flags->server;
  CLI::App* command = app.add_subcommand(
      "serve", "Serves the model over HTTP as OpenAI's API: chat, completions, models.");
  command->footer(
      "Examples:\n"
      "  penstock serve -m MODEL.gguf --memory 8G\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
      "  penstock serve --host 0.0.0.0 --api-key-file keys.txt     for other machines\n"
      "\n"
      "GET /health says how far the loading is, GET /metrics what happened (Prometheus).\n"
      "docs/server.md has examples for common clients.");
  flags->runtime.add_to(*command);
  command->add_option("--host", server.host, "address to listen on; others need --api-key-file")
      ->capture_default_str()
      ->group("Server");
  command->add_option("--port", server.port, "port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group("Server");
  command
      ->add_option("--api-key-file", flags->api_key_file,
                   "file with the keys that clients may send, one a line")
      ->group("Server");
  command->add_option("--alias", server.aliases, "name of the model for clients; may be repeated")
      ->default_str("the file's name")
      ->group("Server");
  command
      ->add_option("--allow-host", server.allow_hosts,
                   "a name of this machine that clients use (checked against DNS rebinding)")
      ->group("Server");
  command
      ->add_option("--allow-origin", server.allow_origins,
                   "a web page or extension that may send requests, as http://name:port")
      ->group("Server");
  command
      ->add_option("--timeout", server.limits.request_seconds,
                   "seconds a request may take, waiting included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Server");
  command
      ->add_option("--drain", server.limits.drain_seconds,
                   "seconds that requests have to finish when the server is told to stop")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Server");
  command->add_option("--queue", server.limits.queue, "requests that may wait for the model")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group("Server");
  command->add_flag("--log-prompts", server.log_prompts, "prompts and answers go to the log")
      ->group("Server");
  command
      ->add_option("--record", flags->record,
                   "writes a run record of every request into this folder (docs/records.md)")
      ->group("Server");
  flags->chat.add_to(*command);
  command->callback([flags, action] { *action = [flags] { return run_serve(*flags); }; });
}

}  // namespace penstock::cli
