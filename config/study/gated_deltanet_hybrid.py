# Overlay: Gated DeltaNet in three layers, softmax attention in the fourth. No positional encoding.
# Of the study's five layers only the fourth has softmax: --n_layer=4 or 8 has whole patterns.
#   python train.py config/study/dense.py config/study/gated_deltanet_hybrid.py --out_dir=out/arm
attention = "gated_deltanet,gated_deltanet,gated_deltanet,softmax"
position = "none"
