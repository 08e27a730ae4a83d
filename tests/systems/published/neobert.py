"""NeoBERT's size from its released code: two tables of 30,522 rows and a bias, 28 layers with
attention, SwiGLU of 2,048 features and two norms, and a last norm."""

SIZES = {"neobert": 30_522 * (2 * 768 + 1) + 28 * (4 * 768 * 768 + 3 * 768 * 2_048 + 2 * 768) + 768}
