# Overlay: the papers' CAttnM (config/cofrgenet_a.py) in the first layer, softmax in the second.
#   python train.py config/recall/softmax.py config/recall/hybrid_cattn_m.py --out_dir=out/hybrid_cattn_m
attention = "cattn_m,softmax"
cattn_scores = "collapsed"
cattn_strict = True
