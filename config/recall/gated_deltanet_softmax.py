# Overlay: Gated DeltaNet in the first layer, softmax attention in the second.
#   python train.py config/recall/base.py config/recall/gated_deltanet_softmax.py --out_dir=out/mqar_gated_deltanet_softmax
attention = "gated_deltanet,softmax"
position = "none"
