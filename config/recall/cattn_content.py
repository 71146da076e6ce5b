# Overlay: CAttnM with columns by distance and by content.
#   python train.py config/recall/base.py config/recall/cattn_content.py --out_dir=out/mqar_cattn_content
attention = "cattn_relative"
cattn_content = True
position = "none"
