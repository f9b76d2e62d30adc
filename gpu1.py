import time, traceback, sys, itertools
T0=time.time()
import torch, triton
from concurrent.futures import ThreadPoolExecutor
from pipeline.kernels.conv3x3 import conv3x3_narrow as nk, conv3x3_gluon, pack as pack3, reference as ref3, conv3x3
from pipeline.kernels.conv_first import conv_first_gluon as fg
from pipeline.kernels.conv_first.conv_first_operands import Operands, pack as packf
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.activation import RELU, NONE
from pipeline.measure.timers import graph_replay_ms
torch.backends.cudnn.benchmark=True
torch.backends.cudnn.allow_tf32=False; torch.backends.cuda.matmul.allow_tf32=False
D="cuda"; H=torch.float16; F8=torch.float8_e4m3fn
def say(*a): print(f"[{time.time()-T0:5.1f}]",*a,flush=True)
def rel(a,b):
    a,b=a.double(),b.double(); 
    if not torch.equal(a.isnan(),b.isnan()): return "NAN"
    return f"{float((a-b).norm()/b.norm()):.1e}"
def warm(calls):
    def one(c):
        torch.cuda.set_device(0)
        try: c()
        except Exception as e: return repr(e)[:150]
    with ThreadPoolExecutor(14) as p: return list(p.map(one,calls))
def narrow_case(b,h,w,i,o,dt,slices=True,planar=False):
    x=torch.randn(b,h,w,2*i if slices else i,device=D).to(dt); x=x[...,i:] if slices else x
    wt=(torch.randn(9,o,i,device=D)/(9*i)**.5).to(dt)
    ep=Epilogue(bias=torch.linspace(-1,1,o,device=D),scale=torch.linspace(.5,2,o,device=D) if dt==F8 else None,activation=NONE if planar else RELU)
    if planar: out=torch.full((b,o,h,w),float("nan"),device=D)
    else:
        out=torch.full((b,h,w,2*o if slices else o),float("nan"),device=D).to(dt); out=out[...,o:] if slices else out
    return x,wt,ep,out
def correct():
    cases=[(2,13,17,16,16,H,False),(2,37,70,32,32,H,False),(1,19,130,24,24,H,False),(2,33,29,40,32,H,False),(2,33,65,64,32,H,False),(2,40,66,8,16,H,False),
      (2,37,70,32,32,F8,False),(2,37,70,64,32,F8,False),(2,37,70,48,32,F8,False),(2,37,71,16,3,H,True),(2,37,71,32,1,H,True),(1,37,64,64,8,H,True),(2,37,71,32,2,F8,True)]
    made=[(c,narrow_case(*c[:6],planar=c[6])) for c in cases]
    tiles=[nk.Tile(16,4,2,1),nk.Tile(4,4,2,2)]
    warm([lambda m=m,t=t,c=c: nk.queue(*m,t,planar=c[6]) for c,m in made for t in tiles])
    for c,m in made:
        x,wt,ep,out=m
        want=torch.empty_like(out) if not c[6] else torch.empty(c[0],c[1],c[2],c[4],device=D)
        ref3(x,wt,ep,Outputs(want))
        want=want.permute(0,3,1,2) if c[6] else want
        r=[]
        for t in tiles:
            try:
                out.copy_(torch.full_like(out.float(),float("nan")).to(out.dtype)); nk.queue(*m,t,planar=c[6]); a=out.clone(); nk.queue(*m,t,planar=c[6])
                r.append((rel(out.float(),want.float()), torch.equal(a.float(),out.float())))
            except Exception as e: r.append(repr(e)[:100])
        say("narrow",c,r)
def first_case(b,h,w,i,o,k,s,dt):
    x=torch.randn(b,i,h,w,device=D); W=torch.randn(o,i,k,k,device=D)/(i*k*k)**.5
    out=torch.full((b,-(-h//s),-(-w//s),o),float("nan"),device=D).to(dt)
    return x,W,Epilogue(bias=torch.linspace(-1,1,o,device=D),activation=RELU),out,s
def correct_first():
    cases=[(2,37,71,3,64,7,2,H),(2,64,64,3,64,7,2,H),(2,37,71,3,32,3,2,H),(2,38,70,3,48,3,1,H),(1,17,130,4,64,5,1,H),(2,37,71,1,32,3,1,H),(2,37,71,3,64,3,1,F8),(1,33,48,3,32,7,1,H)]
    made=[(c,first_case(*c)) for c in cases]
    tiles=[fg.Tile(4,4,2),fg.Tile(3,8,2)]
    warm([lambda m=m,t=t: fg.launch(Operands(m[0],packf(m[1]),m[2],m[3]),t) for c,m in made for t in tiles])
    for c,m in made:
        x,W,ep,out,s=m
        y=torch.nn.functional.conv2d(x.half().float(),W.half().float(),ep.bias,stride=s,padding=W.shape[2]//2).relu().permute(0,2,3,1)
        r=[]
        for t in tiles:
            try:
                fg.launch(Operands(x,packf(W),ep,out),t); a=out.clone(); fg.launch(Operands(x,packf(W),ep,out),t)
                r.append((rel(out.float(),y),torch.equal(a.float(),out.float())))
            except Exception as e: r.append(repr(e)[:100])
        say("first",c,r)
def bench(name,calls,top=6):
    warm([c for i,(n,c) in enumerate(calls) if i%3==0 or not n.startswith(('narrow','first'))])
    res=[]
    for n,c in calls:
        try: res.append((graph_replay_ms(c,8,3)*1e3,n))
        except Exception as e: res.append((9e9,n+" "+repr(e)[:80]))
    res.sort(key=lambda r:r[0])
    say(name)
    for r in res[:top]: print(f"      {r[0]:7.1f} us {r[1]}",flush=True)
    for r in res[top:]:
        if r[0]>1e8 or r[1].startswith(("cudnn","gluon")): print(f"      {r[0]:7.1f} us {r[1]}",flush=True)
def nt(t): return str(t).replace("rows=","").replace("warps=","").replace("programs=","").replace("ahead=","").replace("cols=","").replace("out=","").replace("depth=","")
V={(16,16):((4,3,2),(4,4,1),(4,4,3),(4,5,2),(4,6,1),(8,2,2)),(32,32):((4,2,1),(4,2,2),(4,3,1),(4,4,1)),(32,16):((4,2,2),(4,3,1),(4,3,2),(4,4,1),(4,4,2)),(64,32):((4,2,1),(4,2,2),(4,3,1)),(16,2):((4,3,2),(4,4,2),(4,4,3),(4,5,2),(4,6,1))}
def times_narrow(i,o,s,dt=H,planar=False,cudnn=True):
    m=narrow_case(8,s,s,i,o,dt,False,planar); x,wt,ep,out=m
    x.relu_() if dt==H else None
    tiles=[nk.Tile(r,w,p,a) for w,p,a in V[i,o] for r in (16,31,64)]
    calls=[("narrow "+nt(t),lambda t=t: nk.queue(*m,t,planar=planar)) for t in tiles]
    if not planar:
        for t in list(conv3x3_gluon.candidates(x,o))[:2]: calls.append(("gluon "+nt(t),lambda t=t: conv3x3(x,wt,ep,Outputs(out),t)))
    if cudnn and dt==H:
        xl=x.permute(0,3,1,2); W=wt.reshape(3,3,o,i).permute(2,3,0,1).contiguous(memory_format=torch.channels_last); b=ep.bias.half()
        if planar: calls.append(("cudnn conv",lambda: torch.conv2d(xl,W,b,padding=1)))
        else: calls.append(("cudnn conv+relu",lambda: torch.cudnn_convolution_relu(xl,W,b,[1,1],[1,1],[1,1],1)))
    by=(x.numel()*x.element_size()+out.numel()*out.element_size())/4.24e12*1e6
    bench(f"narrow {i}->{o}@{s} {dt} planar={planar}: bytes {by:.1f} us, {2*9*i*o*8*s*s/1e9:.1f} GFLOP",calls)
def times_first(i,o,k,s,S=512,dt=H):
    x,W,ep,out,_=first_case(8,S,S,i,o,k,s,dt); pk=packf(W)
    tiles=[fg.Tile(r,w,p) for w,p in (((4,2),(4,3),(4,4),(8,2)) if o==64 else ((4,3),(4,4),(4,6))) for r in (2,4,16)]
    calls=[("first "+nt(t),lambda t=t: fg.launch(Operands(x,pk,ep,out),t)) for t in tiles]
    xh=x.half().contiguous(memory_format=torch.channels_last); Wh=W.half().contiguous(memory_format=torch.channels_last); b=ep.bias.half()
    calls.append(("cudnn fp16 conv+relu alone",lambda: torch.cudnn_convolution_relu(xh,Wh,b,[s,s],[k//2]*2,[1,1],1)))
    calls.append(("cudnn cast, conv+relu",lambda: torch.cudnn_convolution_relu(x.to(torch.float16,memory_format=torch.channels_last),Wh,b,[s,s],[k//2]*2,[1,1],1)))
    by=(x.numel()*4+out.numel()*out.element_size())/4.24e12*1e6
    bench(f"first {k}x{k} s{s} {i}->{o}@{S}: bytes {by:.1f} us",calls)
PARTS=[correct,correct_first,lambda:times_narrow(16,16,512),lambda:times_narrow(32,32,512),lambda:times_first(3,64,7,2),lambda:times_narrow(16,2,512,planar=True),
  lambda:times_narrow(32,16,512),lambda:times_narrow(32,32,256),lambda:times_first(3,64,3,1),lambda:times_narrow(64,32,512),lambda:times_narrow(32,32,512,F8),lambda:times_first(3,32,3,2),lambda:times_narrow(64,32,256),lambda:times_narrow(64,32,512,F8),lambda:times_first(1,32,3,1),lambda:times_first(3,64,7,2,256)]
for p in PARTS:
    if time.time()-T0>63: say("out of time"); break
    try: p()
    except Exception: traceback.print_exc(limit=4)
say("end")
