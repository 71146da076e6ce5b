# Overlay: Logits capped at 15.
#   python train.py config/study/dense.py config/study/rope.py config/study/softcap.py --out_dir=out/arm
logit_softcap = 15.0
