# Overlay: Gated DeltaNet. Its state carries the order of the tokens: no positions are added.
#   python train.py config/recall/softmax.py config/recall/gated_deltanet.py --out_dir=out/gated_deltanet
attention = "gated_deltanet"
position = "none"
