"""The eighteen kinds of fault, in the order of the catalogue, and those whose code does not exist yet.

A table that lists only what was planted looks complete with half of the kinds missing, so every kind has a row.
"""

from __future__ import annotations

KINDS = (
    *("FROZEN", "STALE", "MOVED", "LIFETIME", "PADDING", "LADDER", "RANKS", "CAPTURE", "REARM"),
    *("RACE", "CACHEKEY", "SPECIALISE", "CONTRACT", "NUMERICS", "STEPCOST", "CAPCOST", "AMDRT", "HARNESS"),
)
#: Kinds, and parts of kinds, that no mutant can be planted for: what is missing.
NOT_YET = {
    "RANKS": "the engine runs one rank; there is no collective to disagree about",
    "LADDER, drafts": "no draft model is served, so a request has one row and rows equal requests",
    "LIFETIME, draft graphs": "no draft graph is recorded",
}
