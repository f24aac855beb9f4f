"""A page that holds a report in a frame of a given width, measures it and leaves what it found in its own document."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

from suites.instrument.browser import chromium

_SCRIPT = """
const frame = document.querySelector('iframe');
function rgb(text) { return (text.match(/[\\d.]+/g) || []).map(Number); }
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
function background(element, view) {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgb(view.getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}
function measure() {
  const page = frame.contentDocument, view = frame.contentWindow, faint = [], small = [], wide = [];
  page.querySelectorAll('details').forEach(d => { d.open = true; });
  const limit = page.documentElement.clientWidth;
  for (const e of page.body.querySelectorAll('*')) {
    const own = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!own || !e.getClientRects().length) continue;
    const style = view.getComputedStyle(e), svg = e instanceof view.SVGElement;
    const ink = rgb(svg ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(background(e, view))].sort((p, q) => q - p);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(own.slice(0, 40) + ' ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
    if (parseFloat(style.fontSize) < 11) small.push(own.slice(0, 40) + ' ' + style.fontSize);
    if (!e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right > limit + 1) wide.push(own.slice(0, 40));
  }
  const found = {page_px: page.documentElement.scrollWidth, view_px: limit, faint, small, wide,
                 texts: page.body.innerText.length};
  const out = document.createElement('pre');
  out.id = 'found';
  out.textContent = JSON.stringify(found);
  document.body.append(out);
}
frame.addEventListener('load', measure);
"""


@dataclass(frozen=True)
class Found:
    """Pixels, and the texts that break a rule: contrast below 4.5, type below 11 px, running out of the page."""

    page_px: int
    view_px: int
    faint: list[str]
    small: list[str]
    wide: list[str]
    texts: int


def measure(report: str, folder: Path, width: int, *, dark: bool) -> Found:
    """Measure `report` (HTML) in a frame `width` pixels wide, with every part of it opened."""
    page = folder / f"frame-{width}-{dark}.html"
    scheme = "dark" if dark else "light"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>:root{{color-scheme:{scheme}}}iframe{{border:0}}</style>'
        f'<iframe width="{width}" height="900"></iframe><script>{_SCRIPT}'
        f"frame.srcdoc = {json.dumps(report).replace('</', '<' + chr(92) + '/')};</script>",
        encoding="utf-8",
    )
    dumped = chromium.dom(page, dark=dark)
    found = re.search(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)
    if found is None:
        raise RuntimeError(f"the measuring page left nothing: {dumped[-300:]}")
    return Found(**json.loads(html.unescape(found.group(1))))
