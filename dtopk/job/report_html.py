"""What the pages of a report are made of: HTML that needs nothing else."""

import html
from collections.abc import Sequence
from importlib.metadata import version

from dtopk.job.report_chart import N_COLORS, name_color

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5b6470; --back: #ffffff;
  --panel: #f5f6f8; --rule: #dcdfe4; --c0: #0072b2; --c1: #c24a00; --c2: #00805f; --c3: #b0568a;
  --c4: #a86f00; --c5: #56606b; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #a3abb5; --back: #16181b;
  --panel: #1f2226; --rule: #363b42; --c0: #5ab4e8; --c1: #ff8a4c; --c2: #3fc79e; --c3: #e29bc4;
  --c4: #e8b33d; --c5: #a9b2bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 64px; max-width: 1080px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.15rem; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 20px 0 8px; overflow-wrap: anywhere; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } th { font-weight: 600; color: var(--soft); }
.best td { font-weight: 600; } td.path { white-space: normal; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr));
  gap: 16px; } .panel { background: var(--panel); border-radius: 8px; padding: 12px; min-width: 0; }
svg { width: 100%; height: auto; display: block; } .grid { stroke: var(--rule); }
.tick { fill: var(--soft); font-size: 11px; } .label { fill: var(--text); font-size: 12px; }
.line { fill: none; stroke-width: 2; } .dot { stroke: var(--panel); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0; font-size: 0.9rem; }
.legend span::before { content: ""; display: inline-block; width: 12px; height: 12px;
  border-radius: 3px; margin-right: 6px; vertical-align: -1px; background: var(--c); }
.legend .hollow::before { background: none; border: 2px solid var(--c); }
.panel h3 { margin-top: 2px; } a { color: var(--c0); }
.bar { display: grid; grid-template-columns: 5.5rem 1fr 8.5rem; gap: 8px;
  align-items: center; font-size: 0.85rem; } .bar b { font-weight: 400; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; } .bar i { display: block; height: 10px;
  border-radius: 3px; background: var(--c0); min-width: 1px; }
.bar em { font-style: normal; text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: var(--c1); font-weight: 600; }
@media (max-width: 600px) { td:not(.number) { white-space: normal; min-width: 7rem; } }
"""
_COLORS = "".join(
    f".line.c{i} {{ stroke: var(--c{i}); }} .dot.c{i} {{ fill: var(--c{i}); }} "
    f".dot.hollow.c{i} {{ fill: var(--panel); stroke: var(--c{i}); stroke-width: 1.5; }} "
    f".ring.c{i} {{ fill: none; stroke: var(--c{i}); stroke-width: 2; }} "
    f".legend .c{i} {{ --c: var(--c{i}); }}\n"
    for i in range(N_COLORS)
)


def make_page(title: str, heading: str, body: str) -> str:
    """Make a document.

    Parameters
    ----------
    title : str
        What a browser shows of it.
    heading : str
    body : str
        HTML.

    Returns
    -------
    str
        An HTML document that loads nothing.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dtopk: {html.escape(title)}</title><style>{_STYLE}{_COLORS}</style></head>\n"
        f"<body><h1>{html.escape(heading)}</h1>"
        f'<p class="soft">Written by dtopk {html.escape(version("dtopk"))}.</p>'
        f"{body}</body></html>\n"
    )


def draw_legend(names: Sequence[str]) -> str:
    """Say which colour is whose, in the order of the lines.

    Parameters
    ----------
    names : sequence of str
    """
    marks = "".join(
        f'<span class="{name_color(place)}">{html.escape(name)}</span>'
        for place, name in enumerate(names)
    )
    return f'<div class="legend">{marks}</div>'


def lay_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: int,
    *,
    best: frozenset[int] = frozenset(),
) -> str:
    """Lay out rows.

    Parameters
    ----------
    header : sequence of str
        Empty: there is none.
    rows : sequence of sequences of str
        Cells, HTML.
    numbers : int
        The cells from this column on are numbers, and stay on one line.
    best : frozenset of int
        Rows that stand out.
    """

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=number' if place >= numbers else ''}>{cell}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(
        f"<tr{' class=best' if place in best else ''}>{cells(row, 'td')}</tr>"
        for place, row in enumerate(rows)
    )
    head = f"<tr>{cells(header, 'th')}</tr>" if header else ""
    return f'<div class="wide"><table>{head}{body}</table></div>'


def lay_panel(title: str, content: str) -> str:
    """Put a title above something, HTML; nothing where that is empty.

    Parameters
    ----------
    title, content : str
    """
    return f'<div class="panel"><h3>{html.escape(title)}</h3>{content}</div>' if content else ""
