"""A picture of a confusion matrix, drawn with Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

# With more classes than these, names and numbers are not legible.
_MOST_NAMED = 40
_MOST_NUMBERED = 20
# In characters.
_LONGEST_NAME = 16
_WHITE, _BLACK, _BLUE = (255, 255, 255), (20, 20, 20), (8, 48, 107)
# In pixels.
_SIDE = 640
_SMALLEST_CELL = 16
_FONT_SIZE = 13
_GAP = 8

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def confusion_matrix(counts: Tensor, classes: Sequence[str]) -> Image.Image:
    """Draws true classes by row, predicted by column; the colour is the share of the row."""
    number = len(classes)
    named = number <= _MOST_NAMED
    cell = max(_SMALLEST_CELL if named else 1, _SIDE // number)
    matrix = _colour_cells(counts).resize((cell * number, cell * number), Image.Resampling.NEAREST)
    if not named:
        return matrix
    font = ImageFont.load_default(_FONT_SIZE)
    legend = ("rows: true", "columns: predicted")
    names = [_short(name) for name in classes]
    margin = int(max(font.getlength(text) for text in [*names, *legend])) + 2 * _GAP
    side = margin + cell * number + _GAP
    picture = Image.new("RGB", (side, side), _WHITE)
    picture.paste(matrix, (margin, margin))
    rows = _strip(names, (margin, cell), font, right=True)
    picture.paste(rows, (0, margin))
    columns = _strip(names, (margin, cell), font, right=False)
    picture.paste(columns.transpose(Image.Transpose.ROTATE_90), (margin, 0))
    draw = ImageDraw.Draw(picture)
    draw.multiline_text((_GAP, _GAP), "\n".join(legend), _BLACK, font)
    if number <= _MOST_NUMBERED:
        _write_numbers(draw, counts, (margin, cell), font)
    return picture


def _colour_cells(counts: Tensor) -> Image.Image:
    values = counts.detach().cpu().numpy().astype(np.float64)
    share = values / np.maximum(values.sum(axis=1, keepdims=True), 1)
    low, high = np.array(_WHITE), np.array(_BLUE)
    colours = low + share[..., None] * (high - low)
    return Image.fromarray(colours.round().astype(np.uint8))


def _strip(names: Sequence[str], size: tuple[int, int], font: Font, right: bool) -> Image.Image:
    """The names below each other, at the left or at the right edge of a strip."""
    width, cell = size
    strip = Image.new("RGB", (width, cell * len(names)), _WHITE)
    draw = ImageDraw.Draw(strip)
    place, anchor = (width - _GAP, "rm") if right else (_GAP, "lm")
    for row, name in enumerate(names):
        draw.text((place, row * cell + cell // 2), name, _BLACK, font, anchor=anchor)
    return strip


def _write_numbers(
    draw: ImageDraw.ImageDraw, counts: Tensor, size: tuple[int, int], font: Font
) -> None:
    margin, cell = size
    for row, values in enumerate(counts.tolist()):
        for column, value in enumerate(values):
            place = (margin + column * cell + cell // 2, margin + row * cell + cell // 2)
            dark = value > sum(values) / 2
            if value:
                draw.text(place, str(value), _WHITE if dark else _BLACK, font, anchor="mm")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
