# Overlay: CAttnM with columns by distance and by content.
#   python train.py config/recall/softmax.py config/recall/cattn_content.py --out_dir=out/cattn_content
attention = "cattn_relative"
cattn_content = True
position = "none"
