"""EuroBERT's sizes: transformers' EuroBertForMaskedLM with the head's own table."""

SIZES = {
    "eurobert_210m": 310_266_624,
    "eurobert_610m": 755_625_600,
    "eurobert_2_1b": 2_403_092_736,
}
