"""The numbers of the paper's tables, from `paper_tables.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class PaperTable:
    """One table: rows by encoding, columns by length or resolution."""

    name: str
    table: str
    data: str
    metric: str
    trained_at: int
    settings: tuple[int, ...]
    rows: dict[str, tuple[float, ...]]

    def value(self, row: str, setting: int) -> float | None:
        """Returns a cell, None where the paper has none."""
        if row not in self.rows or setting not in self.settings:
            return None
        return self.rows[row][self.settings.index(setting)]


@lru_cache(maxsize=1)
def load_paper_tables() -> dict[str, PaperTable]:
    """Reads all tables."""
    import yaml

    text = Path(__file__).with_name("paper_tables.yaml").read_text(encoding="utf-8")
    tables = {}
    for name, entry in yaml.safe_load(text).items():
        rows = {str(row): tuple(float(cell) for cell in cells) for row, cells in entry.pop("rows").items()}
        settings = tuple(entry.pop("settings"))
        tables[name] = PaperTable(name, settings=settings, rows=rows, **entry)
    return tables
