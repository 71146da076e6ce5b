# Overlay: CAttnM with columns by distance instead of by position.
#   python train.py config/recall/base.py config/recall/cattn_relative.py --out_dir=out/mqar_cattn_relative
attention = "cattn_relative"
position = "none"
