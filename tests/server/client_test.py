"""The official OpenAI client against `penstock serve`, unchanged.

Usage: client_test.py PROGRAM MODEL, with the virtual environment of scripts/python-tests-setup.
"""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import openai

PROGRAM, MODEL = sys.argv[1:3]
BODY = {"Content-Type": "application/json"}


class Served:
    """A running server; `with` stops it with SIGTERM and checks that it ended well."""

    def __init__(self, *arguments):
        self.log = tempfile.NamedTemporaryFile(mode="r", suffix=".log")
        with open(self.log.name, "w") as err:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "-m", MODEL, "-t", "1", "--port", "0", *arguments], stderr=err)
        deadline = time.time() + 60
        while time.time() < deadline:
            found = re.search(r"listening on (http://\S+)", self.text())
            if found and self.health().get("status") == "ok":
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError("the server did not start:\n" + self.text())

    def text(self):
        with open(self.log.name) as log:
            return log.read()

    @property
    def url(self):
        return re.search(r"listening on (http://\S+)", self.text()).group(1)

    def health(self):
        try:
            with urllib.request.urlopen(self.url + "/health") as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def idle(self):
        deadline = time.time() + 30
        while time.time() < deadline:
            if self.health()["requests"] == {"waiting": 0, "running": 0}:
                return True
            time.sleep(0.02)
        return False

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("key", "none"),
                             max_retries=0, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if code != 0:
            raise RuntimeError(f"the server ended with {code}:\n{self.text()}")
        self.log.close()


def run(*arguments):
    done = subprocess.run([PROGRAM, "-q", "run", "-m", MODEL, "-t", "1", "--json", "--no-summary", *arguments],
                          capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


def ask(text):
    return [{"role": "user", "content": text}]


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served()
        cls.client = cls.served.client()
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.served.__exit__()

    def chat(self, text, **options):
        return self.client.chat.completions.create(model=self.model, messages=ask(text), **options)

    def join(self, stream):
        content, reasoning, finish, usage = "", "", None, None
        for chunk in stream:
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
        return content, reasoning, finish, usage

    def test_models(self):
        self.assertEqual(self.model, os.path.basename(MODEL).removesuffix(".gguf"))
        self.assertEqual(self.client.models.retrieve(self.model).object, "model")

    def test_the_same_as_run(self):
        for seed in (1, 2):
            for temperature in (0, 1.0):
                common = ["-n", "40", "--seed", str(seed), "--temp", str(temperature)]
                text = run("-p", "In the beginning", *common)
                reply = self.client.completions.create(
                    model=self.model, prompt="In the beginning", max_tokens=40, seed=seed,
                    temperature=temperature)
                self.assertEqual(reply.choices[0].text, text["text"])
                self.assertEqual(reply.usage.completion_tokens, len(text["tokens"]))
                self.assertEqual(reply.usage.prompt_tokens, text["prompt_tokens"])
                text = run("--chat", "-p", "What is 3 plus 4?", *common)
                chat = self.chat("What is 3 plus 4?", max_completion_tokens=40, seed=seed,
                                 temperature=temperature)
                self.assertEqual(chat.choices[0].message.content, text["text"])

    def test_streams_join_to_the_whole(self):
        # A high temperature brings bytes of all kinds, characters cut across tokens among them.
        seen = ""
        for temperature in (0.7, 3.0, 8.0):
            options = dict(max_tokens=150, seed=11, temperature=temperature, top_p=1.0,
                           extra_body={"top_k": 0, "ignore_eos": True})
            whole = self.chat("Hello", **options)
            content, reasoning, finish, usage = self.join(
                self.chat("Hello", stream=True, stream_options={"include_usage": True}, **options))
            self.assertEqual(content, whole.choices[0].message.content)
            self.assertEqual(finish, "length")
            self.assertEqual(usage.completion_tokens, 150)
            self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)
            seen += content
        self.assertTrue(any(ord(c) > 127 for c in seen))

    def test_every_event_is_utf8(self):
        body = {"messages": ask("👩‍👩‍👧‍👦 漢字 é नमस्ते: say it again"), "stream": True,
                "max_tokens": 120, "temperature": 6, "top_p": 1, "top_k": 0, "seed": 3,
                "ignore_eos": True}
        request = urllib.request.Request(self.served.url + "/v1/chat/completions",
                                         json.dumps(body).encode(), BODY)
        with urllib.request.urlopen(request) as reply:
            self.assertEqual(reply.headers["Content-Type"], "text/event-stream")
            events = [e for e in reply.read().split(b"\n\n") if e]
        self.assertEqual(events[-1], b"data: [DONE]")
        for event in events[:-1]:
            self.assertTrue(event.startswith(b"data: {"))
            json.loads(event[6:].decode("utf-8", errors="strict"))

    def test_stop(self):
        free = self.client.completions.create(model=self.model, prompt="In the beginning",
                                              max_tokens=60, temperature=0).choices[0].text
        stop = free[len(free) // 2:len(free) // 2 + 3]
        for stream in (False, True):
            reply = self.client.completions.create(
                model=self.model, prompt="In the beginning", max_tokens=60, temperature=0,
                stop=[stop, "\0never"], stream=stream)
            text = "".join(c.choices[0].text for c in reply) if stream else reply.choices[0].text
            self.assertEqual(text, free[:free.index(stop)])

    def test_logprobs(self):
        reply = self.chat("Hello", logprobs=True, top_logprobs=5, max_tokens=20, temperature=0)
        tokens = reply.choices[0].logprobs.content
        text = b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace")
        self.assertEqual(text.strip(), reply.choices[0].message.content.strip())
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 5)
            self.assertEqual(token.top_logprobs[0].logprob, token.logprob)  # greedy
            self.assertLessEqual(token.logprob, 0)
        streamed = []
        for chunk in self.chat("Hello", logprobs=True, top_logprobs=5, max_tokens=20,
                               temperature=0, stream=True):
            for choice in chunk.choices:
                streamed += (choice.logprobs and choice.logprobs.content) or []
        self.assertEqual(streamed, tokens)
        old = self.client.completions.create(model=self.model, prompt="In the", max_tokens=5,
                                             logprobs=3, temperature=0).choices[0].logprobs
        self.assertEqual(len(old.tokens), 5)
        self.assertEqual(len(old.top_logprobs[0]), 3)

    def test_reasoning(self):
        thinking = self.chat("What is 3 plus 4?", max_tokens=60, temperature=0,
                             extra_body={"chat_template_kwargs": {"enable_thinking": True}})
        self.assertTrue(thinking.choices[0].message.reasoning_content)
        plain = self.chat("What is 3 plus 4?", max_tokens=60, temperature=0,
                          reasoning_effort="none")
        self.assertFalse(hasattr(plain.choices[0].message, "reasoning_content"))
        self.assertNotEqual(thinking.usage.prompt_tokens, plain.usage.prompt_tokens)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertEqual(caught.exception.body["n_ctx"], 4096)
        self.assertGreater(caught.exception.body["n_prompt_tokens"], 4096)
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for options in ({"tools": [tool]}, {"n": 2}, {"response_format": {"type": "json_object"}},
                        {"logit_bias": {"5": 1}}, {"extra_body": {"mirostat": 2}}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat("Hello", **options)
            name = next(iter(options.get("extra_body", options)))
            self.assertEqual(caught.exception.param, name)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-9", messages=ask("a"))

    def test_timeouts_free_the_server(self):
        impatient = self.served.client(timeout=0.3)
        for stream in (False, True):
            with self.assertRaises(openai.APITimeoutError):
                reply = impatient.completions.create(
                    model=self.model, prompt=[100] * 3900, max_tokens=4000, stream=stream,
                    extra_body={"ignore_eos": True})
                time.sleep(0.4)
                for _ in reply:
                    pass
                raise openai.APITimeoutError(request=None)  # quicker than expected
        self.assertTrue(self.served.idle())
        stream = self.chat("Hello", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertTrue(self.served.idle())

    def test_sixteen_clients_at_once(self):
        def one(seed):
            return self.client.completions.create(
                model=self.model, prompt=f"Number {seed % 5} is", max_tokens=12, seed=seed % 5,
                temperature=1.0).choices[0].text

        alone = [one(seed) for seed in range(5)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(one, range(64)))
        for seed, reply in enumerate(replies):
            self.assertEqual(reply, alone[seed % 5])

    def test_a_conversation_is_reused(self):
        messages = ask("Tell me a story about a mill and a river.")
        first = self.client.chat.completions.create(model=self.model, messages=messages,
                                                    max_tokens=20, temperature=0)
        messages += [first.choices[0].message.model_dump(), *ask("And then?")]
        second = self.client.chat.completions.create(model=self.model, messages=messages,
                                                     max_tokens=20, temperature=0)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 10)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl(self):
        done = subprocess.run(
            ["curl", "-sS", "--fail", "-N", self.served.url + "/v1/chat/completions", "-d",
             json.dumps({"messages": ask("Hello"), "max_tokens": 5, "stream": True})],
            capture_output=True, check=True, text=True)
        self.assertTrue(done.stdout.endswith("data: [DONE]\n\n"))

    def test_metrics(self):
        with urllib.request.urlopen(self.served.url + "/metrics") as reply:
            text = reply.read().decode()
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) penstock_\w+ .+|penstock_\w+(\{.+\})? \S+)$')
        for name in ("requests_total", "tokens_total", "expert_uses_total", "read_bytes_total",
                     "stall_share", "arena_bytes", "memory_planned_bytes", "memory_peak_bytes",
                     "lossy_option", "tokens_per_second"):
            self.assertIn("penstock_" + name, text)


class Options(unittest.TestCase):
    def test_keys_aliases_and_prompts_in_the_log(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# keys\nright\n")
            keys.flush()
            os.chmod(keys.name, 0o600)
            with Served("--api-key-file", keys.name, "--alias", "house", "--log-prompts") as served:
                with self.assertRaises(openai.AuthenticationError):
                    served.client(key="wrong").models.list()
                client = served.client(key="right")
                self.assertEqual(client.models.list().data[0].id, "house")
                client.completions.create(model="house", prompt="a peculiar prompt", max_tokens=1)
                self.assertIn("a peculiar prompt", served.text())
        with Served() as served:
            served.client().completions.create(model="", prompt="a peculiar prompt", max_tokens=1)
            self.assertNotIn("a peculiar prompt", served.text())

    def test_a_model_that_is_not_there(self):
        done = subprocess.run([PROGRAM, "serve", "-m", "missing.gguf", "--port", "0"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 5)
        self.assertIn("missing.gguf", done.stderr)

    def test_another_address_needs_a_key(self):
        done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--host", "0.0.0.0", "--port", "0"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-key-file", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
