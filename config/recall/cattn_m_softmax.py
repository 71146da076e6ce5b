# Overlay: the papers' CAttnM (config/cofrgenet_a.py) in the first layer, softmax in the second.
#   python train.py config/recall/base.py config/recall/cattn_m_softmax.py --out_dir=out/mqar_cattn_m_softmax
attention = "cattn_m,softmax"
cattn_scores = "collapsed"
cattn_strict = True
