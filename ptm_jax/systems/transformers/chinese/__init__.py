"""Models of Chinese text: ERNIE, NEZHA and ZEN."""
