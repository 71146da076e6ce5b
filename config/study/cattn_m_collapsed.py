# Overlay: CAttnM with collapsed scores U x + V z and one head.
#   python train.py config/study/dense.py config/study/cattn_m_collapsed.py --out_dir=out/arm
attention = "cattn_m"
cattn_scores = "collapsed"
