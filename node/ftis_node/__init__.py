"""ftis-node: language models of strangers learn together by exchanging text (F-TIS, arXiv 2605.22537)."""

__version__ = "0.1.0"
