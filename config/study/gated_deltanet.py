# Overlay: Gated DeltaNet as attention. Its state carries the order of the tokens: no positional encoding.
#   python train.py config/study/dense.py config/study/gated_deltanet.py --out_dir=out/arm
attention = "gated_deltanet"
position = "none"
