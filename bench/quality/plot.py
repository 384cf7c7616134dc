#!/usr/bin/env python3
"""docs/cache-aware-routing.svg from the record of bench/quality/run.py's question `routing`: what cache-aware routing
saves in bytes read per token, and what it costs in KL divergence.

    bench/quality/plot.py bench/results/quality/RECORD.json
"""

from __future__ import annotations

import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 460, 70, 20, 50, 60
STYLE = """
svg { font: 14px system-ui, sans-serif; background: #fff; color: #222 }
text { fill: currentColor } .small { font-size: 12px } .axis { stroke: currentColor; stroke-width: 1 }
.grid { stroke: currentColor; opacity: .15 } .bonus { fill: #0b62a4; stroke: #0b62a4 } .prior { fill: #b4530a; stroke: #b4530a }
.exact { fill: currentColor } .line { fill: none; stroke-width: 2; opacity: .6 } .bar { stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { svg { background: #16181c; color: #e6e6e6 } .bonus { fill: #6db3f2; stroke: #6db3f2 }
.prior { fill: #f2a15f; stroke: #f2a15f } }
"""


def main() -> None:
    rows = json.loads(pathlib.Path(sys.argv[1]).read_text())["recipe"]["rows"]
    points = [(row["streaming"]["bytes_per_token"] / 1e6, row["mean_kld"], row["mean_kld_interval"], row["routing"],
               row["tasks"]["accuracy"]) for row in rows]
    x_max = max(p[0] for p in points) * 1.08
    y_max = max(p[2][1] for p in points) * 1.08
    x = lambda v: LEFT + (WIDTH - LEFT - RIGHT) * v / x_max
    y = lambda v: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * v / y_max
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           f"<style>{STYLE}</style>",
           "<title>Cache-aware routing: bytes read per token against KL divergence</title>",
           f'<text x="{LEFT}" y="24">Sample model, a quarter of the experts in memory, closed loop</text>']

    def ticks(most: float) -> list[float]:
        step = 10 ** math.floor(math.log10(most / 4))
        step *= next(m for m in (1, 2, 5, 10) if most / (step * m) <= 6)
        return [step * i for i in range(int(most / step) + 1)]

    for v in ticks(x_max):
        out.append(f'<line class="grid" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text class="small" x="{x(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{v:g}</text>')
    for v in ticks(y_max):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
                   f'<text class="small" x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 18}" text-anchor="middle">MB read per decoded token</text>')
    out.append(f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">mean KLD</text>')
    exact = [p for p in points if p[3] == "prior-0"]
    for kind in ("bonus", "prior"):
        curve = sorted(exact + [p for p in points if p[3].startswith(kind)], reverse=True)
        path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in curve)
        out.append(f'<polyline class="line {kind}" style="fill:none" points="{path}"/>')
    taken: list[tuple[float, float]] = []  # places of labels
    for px, py, (low, high), routing, accuracy in sorted(points, key=lambda p: p[1]):
        kind = routing.split("-")[0]
        label = "exact" if routing == "prior-0" else routing.replace("-", " ", 1).replace("prior", "lambda")
        # Upwards until no label nearby is in the way.
        at_x, at_y = x(px) + 9, y(py) + 4
        while any(abs(at_x - other_x) < 190 and abs(at_y - other_y) < 15 for other_x, other_y in taken):
            at_y -= 3
        taken.append((at_x, at_y))
        end = at_x > WIDTH - 160
        out.append(f'<line class="bar {kind}" x1="{x(px):.1f}" x2="{x(px):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
                   f'<circle class="{kind}" cx="{x(px):.1f}" cy="{y(py):.1f}" r="4"><title>{label}: {px:.2f} MB, KLD {py:.4f}, '
                   f'tasks {100 * accuracy:.0f} %</title></circle>'
                   f'<text class="small" x="{at_x - 4 if end else at_x:.1f}" y="{at_y - 14 if end else at_y:.1f}" text-anchor='
                   f'"{"end" if end else "start"}">{label}, tasks {100 * accuracy:.0f} %</text>')
    out.append("</svg>\n")
    (ROOT / "docs/cache-aware-routing.svg").write_text("\n".join(out))


if __name__ == "__main__":
    main()
