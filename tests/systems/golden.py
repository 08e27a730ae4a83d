"""Write golden.txt: the resolved value of every system, compared by test_catalogue.py."""

from test_catalogue import GOLDEN, resolved

if __name__ == "__main__":
    GOLDEN.write_text(resolved(), encoding="utf8")
