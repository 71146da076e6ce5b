# Overlay: CAttnM with columns by distance instead of by position.
#   python train.py config/recall/softmax.py config/recall/cattn_relative.py --out_dir=out/cattn_relative
attention = "cattn_relative"
position = "none"
