"""Collects the natural text of the sample model from Debian packages.

Three domains, all of them public domain or permissively licensed:

* ``scripture``  King James Bible        (``bible-kjv-text``, public domain text)
* ``python``     Python standard library (``libpython3.11-stdlib`` / ``-minimal``, PSF licence)
* ``manual``     libcurl manual pages and PostgreSQL manual
                 (``libcurl4-doc``, curl licence; ``postgresql-doc-15``, PostgreSQL licence)

Each domain becomes ``DOMAIN.train.jsonl`` and ``DOMAIN.heldout.jsonl``, one JSON string (a document) a line.
A document is held out when the CRC-32 of its name says so, so the split needs no state.
"""

from __future__ import annotations

import argparse
import gzip
import html.parser
import json
import pathlib
import random
import re
import subprocess
import zlib

PACKAGES = ["bible-kjv", "bible-kjv-text", "libcurl4-doc", "postgresql-doc-15",
            "libpython3.11-stdlib", "libpython3.11-minimal"]
DOMAINS = ("scripture", "python", "manual")
HELD_OUT_PERCENT = 3
Doc = tuple[str, str]  # (name, text)


def held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % 100 < HELD_OUT_PERCENT


def unpack(work: pathlib.Path) -> pathlib.Path:
    """Downloads the packages and unpacks them under ``work/root`` (nothing is installed)."""
    debs, root = work / "debs", work / "root"
    if not root.exists():
        debs.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=debs, check=True, stderr=subprocess.DEVNULL)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, root], check=True)
    return root


def scripture(root: pathlib.Path) -> list[Doc]:
    """One document per chapter: a heading, then numbered verses."""
    dump = subprocess.run([root / "usr/bin/bible", "-p", root / "usr/lib", "-f", "gen1:1-rev22:21"],
                          check=True, capture_output=True, text=True).stdout
    chapters: dict[str, list[str]] = {}
    for line in dump.splitlines():
        if match := re.match(r"(\w+?)(\d+):(\d+) (.*)", line):
            book, chapter, verse, text = match.groups()
            chapters.setdefault(f"{book} {chapter}", []).append(f"{verse} {text}")
    return [(name, f"{name}\n\n" + "\n".join(verses) + "\n") for name, verses in chapters.items()]


def python_source(root: pathlib.Path) -> list[Doc]:
    """One document per module; generated code tables are left out."""
    docs = []
    for path in sorted((root / "usr/lib/python3.11").rglob("*.py")):
        if path.parent.name == "encodings" or path.name.startswith("_sysconfigdata") or path.is_symlink():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and len(text) > 400:
            docs.append((str(path.relative_to(root)), text))
    return docs


class _HtmlText(html.parser.HTMLParser):
    """Text of the body; block elements end lines, scripts and navigation are dropped."""

    BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "pre", "li", "dt", "dd", "tr", "table", "br", "title"}
    SKIP = {"script", "style", "head"}

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.skip = 0
        self.pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        css = dict(attrs).get("class") or ""
        if tag in self.SKIP or (tag == "div" and css in ("navheader", "navfooter")):
            self.skip += 1
        elif self.skip and tag == "div":
            self.skip += 1
        elif tag == "pre":
            self.pre += 1
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self.skip and tag in self.SKIP | {"div"}:
            self.skip -= 1
        elif tag == "pre":
            self.pre -= 1
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.skip:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def manual(root: pathlib.Path) -> list[Doc]:
    """One document per manual page."""
    docs = []
    for path in sorted((root / "usr/share/man/man3").glob("*.3.gz")):
        source = gzip.decompress(path.read_bytes())
        if source.startswith(b".so"):
            continue
        page = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rLL=78n", "-rHY=0", "-dAD=l"],
                              input=source, capture_output=True, check=True).stdout.decode()
        docs.append((path.name, page))
    for path in sorted((root / "usr/share/doc/postgresql-doc-15/html").glob("*.html")):
        if re.match(r"(release|biblio|bookindex|index|errcodes|contrib)", path.name):
            continue
        parser = _HtmlText()
        parser.feed(path.read_text(encoding="utf-8"))
        docs.append((path.name, "".join(parser.parts)))
    clean = []
    for name, text in docs:
        text = text.replace("\u00a0", " ").replace("\u201c", '"').replace("\u201d", '"').replace("\u2019", "'")
        text = re.sub(r"[ \t]+\n", "\n", text)
        text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
        if len(text) > 600:
            clean.append((name, text))
    return clean


def excerpts(docs: list[str], size: int = 30_000, per_document: int = 6_000) -> str:
    """Up to ``size`` bytes of text: the openings of documents, cut at line ends."""
    parts: list[str] = []
    for doc in docs:
        room = min(per_document, size - sum(map(len, parts)))
        if room < 500:
            break
        parts.append(doc if len(doc) <= room else doc[:doc.rindex("\n", 0, room) + 1])
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-dir", type=pathlib.Path, help="also write DOMAIN.txt, excerpts of the held-out text")
    args = parser.parse_args()
    root = unpack(args.work)
    for domain, docs in (("scripture", scripture(root)), ("python", python_source(root)), ("manual", manual(root))):
        random.Random(args.seed).shuffle(docs)
        for part, keep in (("train", False), ("heldout", True)):
            chosen = [text for name, text in docs if held_out(name) is keep]
            path = args.work / f"{domain}.{part}.jsonl"
            path.write_text("".join(json.dumps(text) + "\n" for text in chosen))
            if keep and args.eval_dir:
                (args.eval_dir / f"{domain}.txt").write_text(excerpts(chosen))
            print(f"{domain} {part}: {len(chosen)} documents, {sum(len(t.encode()) for t in chosen)} bytes")


if __name__ == "__main__":
    main()
