# Overlay: CAttnM with columns by distance and by content in the first layer, softmax in the second.
#   python train.py config/recall/softmax.py config/recall/hybrid_content.py --out_dir=out/hybrid_content
attention = "cattn_relative,softmax"
cattn_content = True
position = "none"
