"""A small graph in the files of a folder."""


def write(
    folder,
    train="a\tlikes\tb\nb\tmakes\tc d\n",
    names="a\tcat, a small animal\nb\tdog\n",
    long="c d\ta long text\n",
):
    """Writes the files, and returns the name of the source."""
    for name, text in (
        ("train.tsv", train),
        ("entity2text.txt", names),
        ("entity2textlong.txt", long),
    ):
        (folder / name).write_text(text)
    return f"graph:{folder}"
