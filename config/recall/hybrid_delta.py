# Overlay: Gated DeltaNet in the first layer, softmax attention in the second.
#   python train.py config/recall/softmax.py config/recall/hybrid_delta.py --out_dir=out/hybrid_delta
attention = "gated_deltanet,softmax"
position = "none"
