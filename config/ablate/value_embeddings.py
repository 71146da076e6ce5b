# Overlay for a model with softmax attention, as in nanochat: in every second layer, a table of the size of
# the embedding adds to the values. That is many parameters and hardly any FLOPs.
#   python train.py config/modern.py config/ablate/value_embeddings.py --out_dir=out/modern_values
value_embeddings = True
