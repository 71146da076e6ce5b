# An output projection for CAttnM, on top of a model with it.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/proj.py --out_dir=out/arm
cattn_proj = True
