"""TransE and its kin: sizes at FB15k, and the baselines of the miniatures on UMLS."""

from support.baselines import constant

# Bordes et al. 2013, Table 1: 0.81 million at width 50 (and three specials); TransH has normals,
# ConvE vectors of reverse relations and a bias in every row.
SIZES = {
    "transe": 16_299 * 50,
    "transh": 2 * 16_299 * 100,
    "distmult": 16_299 * 100,
    "conve": 2 * 16_299 * 200
    + 16_299
    + 32 * (9 + 1)
    + (18 * 18 * 32 + 1) * 200
    + 2 * (1 + 32 + 200),
}
# Scores that are equal for all triples make the loss the margin.
TRAINS = {
    "transe_mini": [(constant("margin_loss", 1.0), 0.5)],
    "transh_mini": [(constant("margin_loss", 0.25), 0.1)],
}
TEXT = dict.fromkeys(TRAINS, "triples:kg/umls")
