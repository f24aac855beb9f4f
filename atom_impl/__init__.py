"""The compilation and graph layer of a language-model engine, complete and small enough to read."""

__version__ = "0.1.0"
