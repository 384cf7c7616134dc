"""Synthetic ChatML tasks with checkable answers.

``sample(rng, held_out)`` draws one task. Operand pairs, strings and facts are split by a hash into a training and a
held-out part, so a held-out task was never seen in training.

Values stand in prompts after a quote, a line end or another value, as they do in answers: a word after a space is another
token than the same word without one, and a model of this size should not have to learn the pairs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import re
import zlib
from typing import Any, Callable

HELD_OUT_PERCENT = 10

WORDS = ("apple bank bell bird boat book box bread brick bridge cake candle castle chair cloud coat corn crown "
         "desk dog door drum eagle field fire fish flag flower forest fox garden gate glass gold grape hat hill horse "
         "house ice island key king knife lake lamp leaf lion map milk mirror moon mountain mouse music nest ocean "
         "orange paper pearl pen pillow plate queen rain ring river road rock rope rose sail salt sand ship shoe silver "
         "sky snow song spoon star stone storm sun sword table tent tiger tower train tree wagon wall water well wheel "
         "wind window wolf wood").split()
NAMES = ("Ada Adam Alice Anna Ben Boris Carl Clara David Diana Emma Eric Eva Felix Fred Grace Hans Helen Ida Ivan Jack "
         "Jane John Julia Karl Kate Laura Leo Lisa Lucy Mark Mary Max Nina Noah Nora Olga Oscar Paul Peter Rosa Ruth Sam "
         "Sara Simon Sofia Tom Vera Victor Zoe").split()
CITIES = ("Athens Berlin Boston Cairo Delhi Dublin Geneva Lima Lisbon London Madrid Milan Moscow Oslo Paris Prague Rome "
          "Seoul Sydney Tokyo Turin Vienna Warsaw Zurich").split()
COLORS = "red blue green black white brown pink gray".split()
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Greece": "Athens",
            "Japan": "Tokyo", "Egypt": "Cairo", "Norway": "Oslo", "Austria": "Vienna", "Poland": "Warsaw",
            "Peru": "Lima", "Portugal": "Lisbon", "Ireland": "Dublin", "Russia": "Moscow", "England": "London"}
OPPOSITES = {"hot": "cold", "big": "small", "up": "down", "day": "night", "open": "closed", "fast": "slow",
             "old": "young", "wet": "dry", "left": "right", "light": "dark", "rich": "poor", "true": "false",
             "first": "last", "high": "low", "good": "bad", "full": "empty", "hard": "soft", "early": "late"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SYSTEMS = ["You are a helpful assistant.", "Answer briefly.", "You are a careful clerk. Give only the answer.",
           "Be exact."]

Task = dict[str, Any]
Maker = Callable[[random.Random], Task]


def is_held_out(key: str) -> bool:
    return zlib.crc32(key.encode()) % 100 < HELD_OUT_PERCENT


def _task(kind: str, key: str, prompt: str, answer: str, check: str = "exact", **extra: Any) -> Task:
    return {"kind": kind, "key": f"{kind}:{key}", "check": check, "expected": answer,
            "messages": [{"role": "user", "content": prompt}], "answer": {"role": "assistant", "content": answer},
            **extra}


def _operands(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(51), rng.randrange(10)


def _sum(rng: random.Random, kind: str, sign: str, a: int, b: int) -> Task:
    text = f"{a} {sign} {b}"
    prompt = rng.choice(["What is {}?", "{} =", "Work out {}."]).format(text)
    answer = f"{text} = {a + b if sign == '+' else a - b}"
    return _task(kind, text, prompt, answer, reasoning=answer)


def add(rng: random.Random) -> Task:
    return _sum(rng, "add", "+", *_operands(rng))


def subtract(rng: random.Random) -> Task:
    b, a = sorted(_operands(rng))
    return _sum(rng, "subtract", "-", a, b)


def arithmetic_list(rng: random.Random) -> Task:
    """Several sums in one turn: cheap practice in digits."""
    lines, answers = [], []
    for _ in range(rng.randint(3, 8)):
        task = rng.choice((add, subtract))(rng)
        while is_held_out(task["key"]):
            task = rng.choice((add, subtract))(rng)
        lines.append(task["expected"].split(" = ")[0])
        answers.append(task["expected"])
    return _task("arithmetic_list", ";".join(lines), "Work out:\n" + "\n".join(lines), "\n".join(answers))


def compare(rng: random.Random) -> Task:
    a, b = rng.sample(range(100), 2)
    word = rng.choice(["larger", "smaller"])
    answer = max(a, b) if word == "larger" else min(a, b)
    return _task("compare", f"{word}:{a},{b}", f"Which is {word}, {a} or {b}?", str(answer))


def copy(rng: random.Random) -> Task:
    style = rng.randrange(3)
    if style == 0:
        text = " ".join(rng.choices(WORDS, k=rng.randint(2, 7)))
    elif style == 1:
        text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 8)))
    else:
        text = "".join(rng.choices("0123456789", k=rng.randint(3, 8)))
    prompt = rng.choice(["Repeat:\n{}", "Say exactly:\n{}", "Copy this text:\n{}"]).format(text)
    return _task("copy", text, prompt, text)


def pick(rng: random.Random) -> Task:
    items = rng.sample(WORDS, rng.randint(3, 6))
    which = rng.choice(["first", "last"])
    answer = items[0] if which == "first" else items[-1]
    return _task("pick", f"{which}:{' '.join(items)}", f"What is the {which} word of this list?\n" + "\n".join(items),
                 answer)


def lookup(rng: random.Random) -> Task:
    return _lookup(rng, "lookup", rng.randint(3, 8))


def long_lookup(rng: random.Random) -> Task:
    """A table beyond the sparse-attention budget."""
    return _lookup(rng, "long_lookup", rng.randint(20, 30))


def _lookup(rng: random.Random, kind: str, count: int) -> Task:
    names = rng.sample(NAMES, count)
    style = rng.randrange(3)
    values = ([str(rng.randrange(10, 100)) for _ in names] if style == 0 else rng.choices(COLORS, k=count)
              if style == 1 else rng.sample(WORDS, count))
    wanted = rng.randrange(count)
    lines = [f"{name}: {value}" for name, value in zip(names, values)]
    prompt = "\n".join(lines) + "\n\n" + rng.choice(["Find the line:\n{}", "Look up:\n{}"]).format(names[wanted])
    return _task(kind, prompt, prompt, lines[wanted], reasoning=lines[wanted])


def _fields(rng: random.Random) -> dict[str, Any]:
    makers: dict[str, Callable[[], Any]] = {
        "name": lambda: rng.choice(NAMES), "age": lambda: rng.randrange(10, 100), "city": lambda: rng.choice(CITIES),
        "color": lambda: rng.choice(COLORS), "item": lambda: rng.choice(WORDS), "count": lambda: rng.randrange(1, 100),
        "open": lambda: rng.choice([True, False])}
    keys = rng.sample(list(makers), rng.randint(1, 4))
    return {key: makers[key]() for key in keys}


def json_object(rng: random.Random) -> Task:
    fields = _fields(rng)
    listing = json.dumps(fields)[1:-1]
    prompt = rng.choice(["Write a JSON object with {}", "Make JSON: {}", "As JSON: {}"]).format(listing)
    answer = json.dumps(fields)
    return _task("json", answer, prompt, answer, check="json")


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters)}}}


TOOLS = {tool["function"]["name"]: tool for tool in (
    _tool("get_weather", "Weather of a city", city="string"),
    _tool("get_time", "Time in a city", city="string"),
    _tool("add_numbers", "Adds two numbers", a="integer", b="integer"),
    _tool("send_message", "Sends a message", to="string", text="string"),
    _tool("set_light", "Sets the light in a room", room="string", color="string"),
    _tool("buy", "Buys an item", item="string", count="integer"))}


def _tool_request(rng: random.Random, name: str) -> tuple[str, dict[str, Any], list[str]]:
    """(user text, arguments, possible results) of one tool."""
    if name == "get_weather":
        city = rng.choice(CITIES)
        return (rng.choice(['What is the weather in "{}"?', 'How is the weather in "{}"?']).format(city),
                {"city": city}, ["sunny", "rainy", "windy", "snowy"])
    if name == "get_time":
        city = rng.choice(CITIES)
        return (rng.choice(['What time is it in "{}"?', 'Tell me the time in "{}".']).format(city), {"city": city},
                [f"{hour}:{minute}" for hour in range(10, 24) for minute in (15, 20, 30, 45)])
    if name == "add_numbers":
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
        return f"Use the tool to add {a} and {b}.", {"a": a, "b": b}, [str(a + b)]
    if name == "send_message":
        to, text = rng.choice(NAMES), " ".join(rng.sample(WORDS, rng.randint(1, 3)))
        return f'Send "{to}" the message "{text}".', {"to": to, "text": text}, ["ok"]
    if name == "set_light":
        room, color = rng.choice(["kitchen", "hall", "office", "garden"]), rng.choice(COLORS)
        return f'Set the light in "{room}" to "{color}".', {"room": room, "color": color}, ["ok"]
    item, count = rng.choice(WORDS), rng.randrange(2, 10)
    return f'Buy "{item}", {count} of it.', {"item": item, "count": count}, ["ok"]


def _offered(rng: random.Random, name: str) -> list[dict[str, Any]]:
    names = {name, *rng.sample(sorted(TOOLS), rng.randint(0, 1))}
    return [TOOLS[key] for key in sorted(names, key=lambda _: rng.random())]


def tool_call(rng: random.Random) -> Task:
    name = rng.choice(sorted(TOOLS))
    prompt, arguments, _ = _tool_request(rng, name)
    call = {"name": name, "arguments": arguments}
    task = _task("tool_call", prompt, prompt, "", check="tool_call", tools=_offered(rng, name))
    task["expected"] = call
    task["answer"] = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    return task


def tool_result(rng: random.Random) -> Task:
    """The turn after a tool's reply: the reply is passed on."""
    name = rng.choice(["get_weather", "get_time", "add_numbers"])
    prompt, arguments, results = _tool_request(rng, name)
    result = rng.choice(results)
    task = _task("tool_result", f"{prompt} {result}", prompt, result, tools=_offered(rng, name))
    task["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]},
        {"role": "tool", "content": result}]
    return task


def fact(rng: random.Random) -> Task:
    """Closed facts; what is held out is the combination of fact, phrasing and system prompt."""
    style = rng.randrange(3)
    if style == 0:
        subject, value = rng.choice(list(CAPITALS.items()))
        forms, answer = ["What is the capital of {}?", "Name the capital of {}."], "The capital of {} is {}."
    elif style == 1:
        subject, value = rng.choice(list(OPPOSITES.items()))
        forms, answer = ["What is the opposite of {}?", "Give the opposite of {}."], "The opposite of {} is {}."
    else:
        index = rng.randrange(7)
        subject, value = DAYS[index], DAYS[(index + 1) % 7]
        forms, answer = ["Which day comes after {}?", "What day follows {}?"], "The day after {} is {}."
    prompt = rng.choice(forms).format(subject)
    return _task("fact", prompt, prompt, answer.format(subject, value))


KINDS: dict[Maker, float] = {add: 1.2, subtract: 1.2, compare: 0.6, copy: 1.2, pick: 0.8, lookup: 1.3,
                             long_lookup: 0.15, json_object: 1.2, tool_call: 0.6, tool_result: 0.3, fact: 0.6}
PRACTICE: dict[Maker, float] = {arithmetic_list: 1.6}


def sample(rng: random.Random, held_out: bool) -> Task:
    """One task of the wanted part; practice kinds appear in training only."""
    kinds = KINDS if held_out else KINDS | PRACTICE
    maker = rng.choices(list(kinds), weights=list(kinds.values()))[0]
    while True:
        task = maker(rng)
        if maker in PRACTICE or is_held_out(task["key"]) is held_out:
            break
    if rng.random() < 0.25:
        task["messages"].insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    return task


def conversation(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]:
    """A training conversation: (messages, tools, template variables). One task in eight has a second turn, and one
    task in eight that knows a reasoning is thought aloud."""
    task = sample(rng, held_out=False)
    answer = dict(task["answer"])
    variables: dict[str, Any] = {}
    if "reasoning" in task and rng.random() < 0.125:
        answer["reasoning_content"] = task["reasoning"]
        variables = {"enable_thinking": True, "reasoning_effort": rng.choice(["xhigh", "medium", "low"])}
    messages = [*task["messages"], answer]
    if not variables and "tools" not in task and rng.random() < 0.125:
        while True:
            second = sample(rng, held_out=False)
            if "tools" not in second and second["messages"][0]["role"] == "user":
                break
        messages += [*second["messages"], second["answer"]]
    return messages, task.get("tools"), variables


def parse_tool_call(text: str) -> dict[str, Any] | None:
    """The single call of an answer, its arguments as the strings written; None if malformed."""
    match = re.fullmatch(r"<tool_call>\n<function=([^>\n]+)>\n((?:<parameter=[^>\n]+>\n.*?\n</parameter>\n)*)"
                         r"</function>\n</tool_call>", text.strip(), re.S)
    if not match:
        return None
    pairs = re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", match.group(2), re.S)
    return {"name": match.group(1), "arguments": dict(pairs)}


def solved(task: Task, answer: str) -> bool:
    """Whether an answer (without its end-of-turn token) is right."""
    if task["check"] == "json":
        try:
            return json.loads(answer) == json.loads(task["expected"])
        except json.JSONDecodeError:
            return False
    if task["check"] == "tool_call":
        expected = {key: value if isinstance(value, str) else json.dumps(value)
                    for key, value in task["expected"]["arguments"].items()}
        return parse_tool_call(answer) == {"name": task["expected"]["name"], "arguments": expected}
    return answer.strip() == task["expected"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the held-out task set.")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    seen: set[str] = set()
    with args.out.open("w") as out:
        while len(seen) < args.count:
            task = sample(rng, held_out=True)
            text = json.dumps({"messages": task["messages"], "tools": task.get("tools")})
            if text in seen:
                continue
            seen.add(text)
            row = {"id": f"{task['kind']}-{len(seen):03}", "kind": task["kind"], "messages": task["messages"],
                   "expected": task["expected"], "check": task["check"]}
            if "tools" in task:
                row["tools"] = task["tools"]
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
