# Overlay: Gated DeltaNet. Its state carries the order of the tokens: no positions are added.
#   python train.py config/recall/base.py config/recall/gated_deltanet.py --out_dir=out/mqar_gated_deltanet
attention = "gated_deltanet"
position = "none"
