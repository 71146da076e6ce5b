# ExPE paper: the l columns are halved, at inference only; for an evaluation of a finished run.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_half.py --out_dir=out/expe_half
expe_inference_scale = 0.5
