#!/usr/bin/env python3
"""Turns the text of a terminal into a picture, for the README:

  cleanupctl status | ops/screen.py '$ cleanupctl status --watch' > ops/pictures/status.svg
"""

import sys
import unicodedata
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 7.85, 17, 16  # of a character at 13 px, a line, the border

lines = sys.argv[1:] + [line.rstrip("\n") for line in sys.stdin]
columns = max(sum(2 if unicodedata.east_asian_width(c) == "W" else 1 for c in line) for line in lines)
width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
print(
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">'
    '<rect width="100%" height="100%" rx="8" fill="#1d1f26"/>'
)
for place, line in enumerate(lines):
    y = MARGIN + place * HEIGHT + 13
    fill = "#8fd19e" if place < len(sys.argv) - 1 else "#d8dee9"
    # One length for all: fonts differ, and the frames must meet.
    length = f' textLength="{len(line) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"' if line else ""
    print(f'<text x="{MARGIN}" y="{y}" fill="{fill}" xml:space="preserve"{length}>{escape(line)}</text>')
print("</svg>")
