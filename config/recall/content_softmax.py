# Overlay: CAttnM with columns by distance and by content in the first layer, softmax in the second.
#   python train.py config/recall/base.py config/recall/content_softmax.py --out_dir=out/mqar_content_softmax
attention = "cattn_relative,softmax"
cattn_content = True
position = "none"
